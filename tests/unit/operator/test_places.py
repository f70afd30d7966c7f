"""Where clients outside reach a pod."""

from __future__ import annotations

from headrace_operator.places import external_addresses, news, still_waits
from headrace_operator.resources import ExternalListener
from headrace_operator.schema import Json, parse


def service(**load_balancer: str) -> Json:
    return {
        "metadata": {"name": "demo-broker-1-external"},
        "spec": {"ports": [{"port": 9095, "nodePort": 31234}]},
        "status": {"loadBalancer": {"ingress": [load_balancer]} if load_balancer else {}},
    }


def address(found: Json | None, **listener: str) -> str | None:
    return next(iter(external_addresses(found, parse(ExternalListener, listener))), None)


def test_a_node_port_is_behind_the_address_that_was_given() -> None:
    assert address(service(), type="NodePort", advertisedHost="nodes.example") == "nodes.example:31234"
    assert address(None, type="NodePort", advertisedHost="nodes.example") is None


def test_a_load_balancer_says_its_own_address_once_it_has_one() -> None:
    assert address(service(), type="LoadBalancer") is None
    assert address(service(ip="192.0.2.7"), type="LoadBalancer") == "192.0.2.7:9095"
    assert address(service(hostname="lb.example"), type="LoadBalancer") == "lb.example:9095"


def test_names_of_ones_own_tell_load_balancers_apart() -> None:
    told = address(service(ip="192.0.2.7"), type="LoadBalancer", advertisedHost="{pod}.kafka.example")
    assert told == "demo-broker-1.kafka.example:9095"


def test_a_pod_that_was_told_and_did_not_notice_still_waits() -> None:
    def pod(**state: Json) -> Json:
        return {"status": {"initContainerStatuses": [{"name": "wait-for-place", "state": state}]}}

    assert still_waits(pod(running={"startedAt": "2026-01-01T00:00:00Z"}))
    assert not still_waits(pod(terminated={"exitCode": 0}))
    assert not still_waits(pod(waiting={"reason": "PodInitializing"}))
    assert not still_waits({"status": {}})


def told(address: str | None, waits: bool = False) -> Json:
    state: Json = {"running": {}} if waits else {"terminated": {}}
    return {
        "metadata": {"annotations": {"headrace.dev/external-address": address} if address else {}},
        "status": {"initContainerStatuses": [{"name": "wait-for-place", "state": state}]},
    }


def test_a_pod_that_runs_with_another_address_has_to_start_again() -> None:
    assert news(told("old:1"), ["new:1"]) == {
        "headrace.dev/external-address": "new:1",
        "headrace.dev/stale-address": "old:1",
    }
    assert news(told("old:1", waits=True), ["new:1"]) == {"headrace.dev/external-address": "new:1"}
    assert news(told(None, waits=True), ["new:1"]) == {"headrace.dev/external-address": "new:1"}


def test_an_address_that_still_holds_is_left_alone() -> None:
    assert news(told("b:1"), ["a:1", "b:1"]) == {}
    assert news(told("b:1"), []) == {}, "a load balancer that has none for a moment"
