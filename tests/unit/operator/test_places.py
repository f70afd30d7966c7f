"""Where clients outside reach a pod."""

from __future__ import annotations

from headrace_operator.places import external_address, still_waits
from headrace_operator.resources import ExternalListener
from headrace_operator.schema import Json, parse


def service(**load_balancer: str) -> Json:
    return {
        "metadata": {"name": "demo-broker-1-external"},
        "spec": {"ports": [{"port": 9095, "nodePort": 31234}]},
        "status": {"loadBalancer": {"ingress": [load_balancer]} if load_balancer else {}},
    }


def address(found: Json | None, **listener: str) -> str | None:
    return external_address(found, parse(ExternalListener, listener))


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
