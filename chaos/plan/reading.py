"""Reading a scenario's file. Everything in it is checked; an error names the place and what would be right."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from chaos.plan import words
from chaos.plan.actions import ACTIONS, Action, Capability, Subject
from chaos.plan.model import (
    DEFAULT_WITHIN_S,
    ClusterPlan,
    Expectation,
    LoadPlan,
    QueuePlan,
    Round,
    Scenario,
    Step,
)
from chaos.plan.words import PlanError

#: What may be wanted to have been at risk. Over the run: masters that queues got, faults that landed, messages
#: confirmed, deliveries with the flag, neighbours whose order was compared, messages found lost (of a scenario that
#: shows that loss is seen). Summed over the moments at which faults began: messages in the queues, deliveries that
#: consumers held, publishes without an answer, mirrors that lacked something, queues without a master.
RISKS = (
    "failovers",
    "faults",
    "confirmed",
    "redelivered",
    "pairs",
    "lost",
    "stored",
    "held",
    "outstanding",
    "unsynchronised",
    "unserved",
)
NODES_MAX = 9
TIMES_MAX = 1000
_STEP_KEYS = ("do", "to", "when", "within", "after", "for", "name")


def read_document(path: Path) -> dict[str, Any]:
    """What a file says, before it is checked. Raises `PlanError`, with the name of the file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: this is no TOML: {error}") from None


def read_scenario(path: Path) -> Scenario:
    """Raises `PlanError`, with the name of the file."""
    document = read_document(path)
    try:
        return scenario(document)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None


def catalogue_documents() -> dict[str, dict[str, Any]]:
    """What the files say that come with the laboratory, by their names, in order."""
    files = sorted(
        (file for file in resources.files("chaos.plan").joinpath("catalogue").iterdir() if file.name.endswith(".toml")),
        key=lambda file: file.name,
    )
    return {file.name: tomllib.loads(file.read_text(encoding="utf-8")) for file in files}


def catalogue() -> dict[str, Scenario]:
    """The scenarios that come with the laboratory, by id."""
    found: dict[str, Scenario] = {}
    for name, document in catalogue_documents().items():
        try:
            read = scenario(document)
        except PlanError as error:
            raise PlanError(f"{name}: {error}") from None
        if read.id in found:
            raise PlanError(f"{name}: there is a scenario {read.id} already")
        found[read.id] = read
    return found


def scenario(document: Mapping[str, Any]) -> Scenario:
    """A scenario from a document that was read. Raises `PlanError`."""
    known = ("id", "title", "holds", "anchor", "tags", "needs", "cluster", "queue", "load", "round", "expect")
    _only(document, known, "the scenario")
    queues = [_queue(table, f"queue {number}") for number, table in enumerate(_tables(document, "queue"), 1)]
    if not queues:
        raise PlanError("there is no [[queue]]; a scenario is about at least one")
    names = [queue.name for queue in queues]
    if len(set(names)) < len(names):
        raise PlanError(f"two queues have one name: {', '.join(sorted(names))}")
    cluster = _cluster(_table(document, "cluster"))
    rounds = [
        _round(table, f"round {number}", names, cluster.nodes)
        for number, table in enumerate(_tables(document, "round"), 1)
    ]
    for queue in queues:
        if not 1 <= queue.declared_at <= cluster.nodes:
            raise PlanError(f"queue {queue.name}: there is no n{queue.declared_at} among {cluster.nodes} nodes")
    return Scenario(
        id=_text(document, "id"),
        title=_text(document, "title"),
        holds=_text(document, "holds"),
        cluster=cluster,
        queues=queues,
        load=_options(LoadPlan, _LOAD, _table(document, "load"), "load"),
        rounds=rounds,
        expectation=_expectation(_table(document, "expect")),
        anchor=document.get("anchor", ""),
        tags=tuple(document.get("tags", ())),
        extra_needs=frozenset(_capability(name) for name in document.get("needs", ())),
    )


# --- parts


def _cluster(table: Mapping[str, Any]) -> ClusterPlan:
    _only(table, ("nodes", "policy", "settings"), "cluster")
    nodes = table.get("nodes", 3)
    if not isinstance(nodes, int) or not 1 <= nodes <= NODES_MAX:
        raise PlanError(f"cluster: nodes = {nodes!r} is not between 1 and {NODES_MAX}")
    return ClusterPlan(nodes, table.get("policy", {}), table.get("settings", {}))


def _queue(table: Mapping[str, Any], where: str) -> QueuePlan:
    _only(table, ("name", "arguments", "durable", "publishers", "consumers", "declared_at"), where)
    return QueuePlan(
        name=_text(table, "name", where),
        arguments=table.get("arguments", {}),
        is_durable=table.get("durable", True),
        publishers=_number(table, "publishers", 1, where),
        consumers=_number(table, "consumers", 2, where),
        declared_at=_number(table, "declared_at", 1, where),
    )


_LOAD: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "rate": ("rate", float),
    "window": ("window", int),
    "body": ("body_bytes", words.size_bytes),
    "prefetch": ("prefetch", int),
    "acked_together": ("acked_together", int),
    "requeued_share": ("requeued_share", float),
    "mandatory": ("is_mandatory", bool),
    "persistent": ("is_persistent", bool),
    "warm": ("warm_s", words.duration_s),
    "calm": ("calm_s", words.duration_s),
}


def _options(plan: type[LoadPlan], known: Mapping[str, Any], table: Mapping[str, Any], where: str) -> LoadPlan:
    _only(table, known, where)
    values: dict[str, Any] = {}
    for name, value in table.items():
        option, read = known[name]
        default = getattr(plan(), option)
        if read in (float, int, bool) and (
            isinstance(value, bool) != isinstance(default, bool) or not _is_number(value)
        ):
            raise PlanError(f"{where}: {name} = {value!r} is no {'yes or no' if read is bool else 'number'}")
        values[option] = _with_place(f"{where}: {name}", read, value)
        if not isinstance(default, bool) and values[option] < 0:
            raise PlanError(f"{where}: {name} = {value!r} is less than nothing")
    return dataclasses.replace(plan(), **values)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _expectation(table: Mapping[str, Any]) -> Expectation:
    _only(table, ("loss", "at_risk", "publish_gap", "consume_gap"), "expect")
    at_risk = _table(table, "at_risk")
    _only(at_risk, RISKS, "expect.at_risk")
    for name in at_risk:
        _number(at_risk, name, 0, "expect.at_risk")
    gaps = {
        option: _with_place(f"expect: {name}", words.duration_s, table[name]) if name in table else None
        for name, option in (("publish_gap", "publish_gap_max_s"), ("consume_gap", "consume_gap_max_s"))
    }
    return Expectation(loss_permitted=table.get("loss", ""), at_risk=at_risk, **gaps)


def _round(table: Mapping[str, Any], where: str, queues: Sequence[str], nodes: int) -> Round:
    _only(table, ("times", "step"), where)
    times = _number(table, "times", 1, where)
    if not 1 <= times <= TIMES_MAX:
        raise PlanError(f"{where}: times = {times} is not between 1 and {TIMES_MAX}")
    steps = [
        _step(step, f"{where}, step {number}", queues, nodes) for number, step in enumerate(_tables(table, "step"), 1)
    ]
    if not steps:
        raise PlanError(f"{where}: there is no [[round.step]]")
    named = [step.name for step in steps if step.name]
    for number, step in enumerate(steps, 1):
        what = step.arguments.get("what")
        if what is not None and what not in named:
            raise PlanError(f"{where}, step {number}: no step of this round has the name {what!r}")
    return Round(steps, times)


def _step(table: Mapping[str, Any], where: str, queues: Sequence[str], nodes: int) -> Step:
    name = _text(table, "do", where)
    action = ACTIONS.get(name)
    if action is None:
        raise PlanError(f"{where}: nobody knows how to do {name!r}; there are: {', '.join(ACTIONS)}")
    _only(table, (*_STEP_KEYS, *action.arguments), f"{where} ({name})")
    if not action.is_fault and {"for", "name"} & table.keys():
        raise PlanError(f'{where}: "for" and "name" are of faults, and {name!r} is none')
    missing = sorted(action.required - table.keys())
    if missing:
        raise PlanError(f"{where}: {name!r} must be told {', '.join(missing)}")
    arguments = {
        option: _argument(action, option, table[option], f"{where}: {option}", queues, nodes)
        for option in action.arguments
        if option in table
    }
    step = Step(
        action,
        when=_with_place(where, words.condition, table["when"]) if "when" in table else None,
        within_s=_with_place(where, words.duration_s, table["within"]) if "within" in table else DEFAULT_WITHIN_S,
        after_s=_with_place(where, words.duration_s, table["after"]) if "after" in table else 0.0,
        for_s=_with_place(where, words.duration_s, table["for"]) if "for" in table else None,
        name=table.get("name", ""),
        arguments=arguments,
        **_subject(action, table.get("to"), where),
    )
    _check_names(step, where, queues, nodes)
    return step


def _subject(action: Action, to: object, where: str) -> dict[str, Any]:
    if action.subject is Subject.NOTHING:
        if to is not None:
            raise PlanError(f'{where}: {action.name!r} is done to nobody; leave out "to"')
        return {}
    if to is None:
        raise PlanError(f'{where}: {action.name!r} is done to {action.subject}; say "to"')
    if action.subject is Subject.QUEUE:
        return {"queue": to}
    read = words.nodes if action.subject is Subject.NODES else words.lines
    return {str(action.subject): _with_place(where, read, to)}


def _argument(action: Action, option: str, value: object, where: str, queues: Sequence[str], nodes: int) -> Any:
    if option != "faults":
        return _with_place(where, action.arguments[option], value)
    if not isinstance(value, list) or not value:
        raise PlanError(f"{where}: it must be a list of faults")
    drawn = [_step(table, f"{where} {number}", queues, nodes) for number, table in enumerate(value, 1)]
    for number, step in enumerate(drawn, 1):
        if not step.action.is_fault or step.for_s is None:
            raise PlanError(f'{where} {number}: it must be a fault that ends by itself (say "for")')
    return drawn


def _check_names(step: Step, where: str, queues: Sequence[str], nodes: int) -> None:
    named = step.named_nodes()
    spoken_of = [*(each.queue for each in named), step.queue]
    if step.when is not None:
        spoken_of.append(step.when.queue)
    for queue in spoken_of:
        if queue is not None and queue not in queues:
            raise PlanError(f"{where}: there is no queue {queue!r}; there are: {', '.join(queues)}")
    for each in named:
        if each.numbers and max(each.numbers) > nodes:
            raise PlanError(f"{where}: there is no n{max(each.numbers)} among {nodes} nodes")
        if each.random_count > nodes:
            raise PlanError(f"{where}: there are not {each.random_count} nodes, but {nodes}")


# --- tables


def _only(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    known = list(known)
    unknown = sorted(table.keys() - set(known))
    if unknown:
        raise PlanError(f"{where}: nobody knows {', '.join(map(repr, unknown))}; there are: {', '.join(known)}")


def _table(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = table.get(name, {})
    if not isinstance(value, Mapping):
        raise PlanError(f"{name}: it must be a table")
    return value


def _tables(table: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    value = table.get(name, [])
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise PlanError(f"{name}: it must be a list of tables, [[{name}]]")
    return value


def _text(table: Mapping[str, Any], name: str, where: str = "the scenario") -> str:
    value = table.get(name)
    if not isinstance(value, str) or not value:
        raise PlanError(f"{where}: {name} must be there, and be a text")
    return value


def _number(table: Mapping[str, Any], name: str, default: int, where: str) -> int:
    value = table.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise PlanError(f"{where}: {name} = {value!r} is no number")
    return value


def _capability(name: object) -> Capability:
    try:
        return Capability(str(name))
    except ValueError:
        raise PlanError(f"needs: nobody knows {name!r}; there are: {', '.join(Capability)}") from None


def _with_place(where: str, read: Callable[[Any], Any], value: object) -> Any:
    try:
        return read(value)
    except PlanError as error:
        raise PlanError(f"{where}: {error}") from None
