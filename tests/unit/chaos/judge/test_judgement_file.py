"""A judgement is the same when it is read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.judge import judgement_file
from chaos.judge.findings import Name, QueueFacts, RunFacts
from chaos.judge.judgement import TOLD_OF_EACH, messages_told
from chaos.judge.judgement_file import NoJudgement
from chaos.record.message_key import unpack
from chaos.suite.by_reference import judgement_by_reference
from tests.support.told import CONSUMING, PUBLISHER, PUBLISHING, Told, key

#: Five are lost, one comes twice.
STORY = Told().promote(2).confirmed(1, 2, 3, 4, 5, 6).deliver(6).release(6).again(6).ack(6, on="B").complete()
FACTS = RunFacts({PUBLISHING: frozenset({PUBLISHER}), CONSUMING["A"]: frozenset()}, [QueueFacts()])


def test_what_is_written_is_read(tmp_path: Path) -> None:
    judgement = judgement_by_reference(STORY, FACTS)
    assert judgement.counts[Name.LOST] == 5
    judgement_file.write(judgement, tmp_path)
    assert judgement_file.read(tmp_path) == judgement
    assert [path.name for path in tmp_path.iterdir()] == [judgement_file.FILE_NAME]


def test_a_few_of_each_are_told_of() -> None:
    judgement = judgement_by_reference(STORY, FACTS)
    lost = [key(number) for number in range(1, TOLD_OF_EACH + 1)]
    assert messages_told(judgement.examples) == [*lost, key(6)]
    assert {unpack(event.message).sequence for event in judgement.told} == {1, 2, 3, 6}


@pytest.mark.parametrize("text", [None, "{", "[]", '{"format": 0}'])
def test_what_cannot_be_read_is_told(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / judgement_file.FILE_NAME).write_text(text, encoding="utf-8")
    with pytest.raises(NoJudgement):
        judgement_file.read(tmp_path)
