"""Results as JUnit XML, which continuous integration reads."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from chaos.judge.verdict import Verdict
from chaos.suite.results import Result


def junit_xml(suite: str, results: Sequence[Result]) -> str:
    """FAIL is a failure, UNKNOWN and VACUOUS are errors: nothing was proved. Skipped is skipped, with the reason."""
    failures = [result for result in results if result.verdict is Verdict.FAIL]
    errors = [result for result in results if result.is_bad and result.verdict is not Verdict.FAIL]
    skipped = [result for result in results if result.verdict is None]
    root = ElementTree.Element(
        "testsuite",
        name=suite,
        tests=str(len(results)),
        failures=str(len(failures)),
        errors=str(len(errors)),
        skipped=str(len(skipped)),
        time=f"{sum(result.took_s for result in results):.3f}",
    )
    for result in results:
        name = f"{result.scenario} {result.title} (seed {result.seed})"
        case = ElementTree.SubElement(
            root, "testcase", classname=f"{suite}.{result.target}", name=name, time=f"{result.took_s:.3f}"
        )
        text = "; ".join(result.reasons)
        if result.verdict is None:
            ElementTree.SubElement(case, "skipped", message=text)
        elif result.is_bad:
            kind = "failure" if result.verdict is Verdict.FAIL else "error"
            problem = ElementTree.SubElement(case, kind, type=str(result.verdict), message=text)
            problem.text = f"the record is in {result.directory}"
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
