"""What is read from the API server's objects."""

from __future__ import annotations

from headrace_operator.observed import Observed, without_class
from headrace_operator.schema import Json


def claim(name: str, storage_class: str | None, phase: str = "Pending") -> Json:
    spec = {"storageClassName": storage_class} if storage_class else {}
    return {"metadata": {"name": name}, "spec": spec, "status": {"phase": phase}}


def test_a_claim_that_waits_for_a_class_that_is_not_there_is_named() -> None:
    seen = Observed(claims=[claim("data-demo-broker-0", "fast")], missing_classes={"fast"})
    said = without_class(seen)
    assert said is not None
    assert "data-demo-broker-0" in said
    assert "storage class fast" in said


def test_other_claims_are_not_talked_about() -> None:
    bound, slow, default = claim("a", "fast", "Bound"), claim("b", "slow"), claim("c", None)
    assert without_class(Observed(claims=[bound, slow, default], missing_classes={"fast"})) is None
