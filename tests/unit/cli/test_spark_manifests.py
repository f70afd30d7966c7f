"""What `headrace spark submit` makes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml
from jobs import topic_to_parquet
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.cli.spark_manifests import (
    IMAGE,
    IN_IMAGE,
    InvalidSubmission,
    Submission,
    command,
    job_name,
    manifests,
    rights,
)

KUBERNETES = Path(__file__).resolve().parents[3] / "jobs" / "kubernetes"
RIGHTS = ["ServiceAccount", "Role", "RoleBinding"]
JOB = Submission("topic_to_parquet.py", "orders", "data", "demo", "headrace/spark:1", ("--topic", "orders"))


def of_kind(made: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [each for each in made if each["kind"] == kind]
    return found


def test_a_job_of_the_image_needs_rights_a_driver_a_name_for_it_and_a_place_for_checkpoints() -> None:
    made = manifests(JOB)
    assert [each["kind"] for each in made] == [*RIGHTS, "Service", "PersistentVolumeClaim", "Job"]
    assert {each["metadata"]["namespace"] for each in made} == {"data"}
    selector = of_kind(made, "Service")["spec"]["selector"]
    pod = of_kind(made, "Job")["spec"]["template"]
    assert selector.items() <= pod["metadata"]["labels"].items()
    claims = [v["persistentVolumeClaim"]["claimName"] for v in pod["spec"]["volumes"] if "persistentVolumeClaim" in v]
    assert claims == [of_kind(made, "PersistentVolumeClaim")["metadata"]["name"]]


def test_the_driver_is_told_the_cluster_and_its_own_pod() -> None:
    line = command(JOB)
    assert line[line.index("local:///opt/headrace/jobs/topic_to_parquet.py") + 1 :] == [
        "--bootstrap-servers",
        "demo-metadata.data.svc:9094",
        "--topic",
        "orders",
    ]
    assert "spark.kubernetes.driver.pod.name=$(POD_NAME)" in line
    assert "spark.driver.bindAddress=$(POD_IP)" in line, "what executors connect to"
    assert "spark.driver.host=orders-driver.data.svc" in line


def test_an_address_of_the_users_own_is_kept() -> None:
    line = command(replace(JOB, arguments=("--bootstrap-servers=elsewhere:9094",)))
    assert line[-1] == "--bootstrap-servers=elsewhere:9094"
    assert "demo-metadata.data.svc:9094" not in line


def test_settings_of_the_users_own_win() -> None:
    line = command(replace(JOB, conf={"spark.executor.instances": "9"}))
    assert "spark.executor.instances=9" in line
    assert "spark.executor.instances=2" not in line


def test_a_service_account_of_the_users_own_is_used_as_it_is() -> None:
    made = manifests(replace(JOB, service_account="theirs"))
    assert not {each["kind"] for each in made} & set(RIGHTS)
    assert of_kind(made, "Job")["spec"]["template"]["spec"]["serviceAccountName"] == "theirs"
    assert of_kind(manifests(JOB), "Job")["spec"]["template"]["spec"]["serviceAccountName"] == "headrace-spark"


def test_the_file_for_plain_spark_submit_gives_the_same_rights() -> None:
    assert list(yaml.safe_load_all((KUBERNETES / "rbac.yaml").read_text())) == rights()


def test_a_pod_that_submits_may_do_what_a_driver_may_and_make_the_policy_around_executors() -> None:
    submitter = list(yaml.safe_load_all((KUBERNETES / "submitter.yaml").read_text()))
    (driver, policies) = of_kind(submitter, "Role")["rules"]
    assert [driver] == of_kind(rights(), "Role")["rules"]
    assert (policies["apiGroups"], policies["resources"]) == (["networking.k8s.io"], ["networkpolicies"])
    account = of_kind(submitter, "ServiceAccount")["metadata"]["name"]
    assert of_kind(submitter, "RoleBinding")["subjects"] == [{"kind": "ServiceAccount", "name": account}]


def test_executors_get_no_token() -> None:
    assert (
        yaml.safe_load((KUBERNETES / "executor-pod.yaml").read_text())["spec"]["automountServiceAccountToken"] is False
    )


def test_volumes_are_mounted_in_driver_and_executors() -> None:
    wanted = replace(JOB, volumes={"/lake": "shared"})
    pod = of_kind(manifests(wanted), "Job")["spec"]["template"]["spec"]
    (name,) = [v["name"] for v in pod["volumes"] if v.get("persistentVolumeClaim", {}).get("claimName") == "shared"]
    assert {"name": name, "mountPath": "/lake"} in pod["containers"][0]["volumeMounts"]
    prefix = f"spark.kubernetes.executor.volumes.persistentVolumeClaim.{name}"
    assert {f"{prefix}.options.claimName=shared", f"{prefix}.mount.path=/lake"} <= set(command(wanted))


def test_a_second_driver_names_its_executors_anew() -> None:
    # The executors of a driver that was killed are there until it is deleted: their names are taken.
    assert not any("podNamePrefix" in each for each in command(JOB))


def test_a_file_of_the_users_own_goes_along() -> None:
    made = manifests(replace(JOB, job="jobs/mine.py", script="print(1)"))
    assert of_kind(made, "ConfigMap")["data"] == {"mine.py": "print(1)"}
    pod = of_kind(made, "Job")["spec"]["template"]["spec"]
    assert "local:///opt/headrace/submitted/mine.py" in pod["containers"][0]["args"]


def test_a_drained_node_does_not_use_up_the_drivers_retries() -> None:
    spec = of_kind(manifests(JOB), "Job")["spec"]
    rule, refused = spec["podFailurePolicy"]["rules"]
    assert (refused["action"], refused["onExitCodes"]["values"]) == ("FailJob", [2]), "wrong arguments stay wrong"
    assert rule["action"] == "Ignore"
    assert rule["onPodConditions"][0]["type"] == "DisruptionTarget"
    # Kubernetes takes such a policy with this restart policy only.
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_memory_is_heap_and_overhead_together() -> None:
    container = of_kind(manifests(JOB), "Job")["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"memory": "1152Mi"}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"name": "No_Name"}, "give --name at most 50"),
        ({"executors": 0}, "must be at least 1"),
        ({"driver_memory": "lots"}, "write 512m or 2g"),
        (
            {"image": IMAGE, "job": "topic_to_parqet.py"},
            "has no job topic_to_parqet: it has compacted_snapshot, replay",
        ),
        ({"executor_memory": "1t"}, "write 512m or 2g"),
        ({"retries": -1}, "--retries must be at least 0"),
        ({"volumes": {"lake": "shared"}}, "write --volume CLAIM:/data"),
        ({"volumes": {"/tmp/x": "shared"}}, "write --volume CLAIM:/data"),
        ({"script": "x" * 1_000_000}, "too large for a ConfigMap"),
    ],
)
def test_what_cannot_be_submitted_says_why(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidSubmission, match=sentence):
        manifests(replace(JOB, **wrong))


def test_the_examples_for_the_operators_fit_the_image_and_its_job(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        topic_to_parquet.main(["--help"])
    takes = capsys.readouterr().out
    kubeflow, apache = yaml.safe_load_all((KUBERNETES / "spark-application.yaml").read_text())
    conf = apache["spec"]["sparkConf"]
    assert kubeflow["spec"]["image"] == conf["spark.kubernetes.container.image"] == IMAGE
    versions = kubeflow["spec"]["sparkVersion"], apache["spec"]["runtimeVersions"]["sparkVersion"]
    assert set(versions) == {pyspark.__version__}
    assert kubeflow["spec"]["mainApplicationFile"] == apache["spec"]["pyFiles"]
    assert kubeflow["spec"]["arguments"] == apache["spec"]["driverArgs"]
    for argument in apache["spec"]["driverArgs"]:
        assert argument.partition("=")[0] in takes


def test_the_jobs_of_the_image_are_those_that_are_here() -> None:
    assert sorted(each.name for each in KUBERNETES.parent.glob("*.py")) == list(IN_IMAGE)


def test_names_come_from_files() -> None:
    assert job_name("jobs/Windowed_Counts.py") == "windowed-counts"


@pytest.mark.parametrize("first", [True, False])
def test_a_dry_run_prints_manifests(first: bool) -> None:
    """Options come before or after the job, what is the job's own after two dashes."""
    options, job = ["--dry-run", "--cluster", "demo", "-n", "data"], ["replay"]
    line = [*options, *job] if first else [*job, *options]
    said = CliRunner().invoke(app, ["spark", "submit", *line, "--", "--topic", "orders"])
    assert said.exit_code == 0, said.output
    made = json.loads(said.output)["items"]
    container = of_kind(made, "Job")["spec"]["template"]["spec"]["containers"][0]
    assert container["args"][-4:] == ["--bootstrap-servers", "demo-metadata.data.svc:9094", "--topic", "orders"]
    kinds = [each["kind"] for each in made]
    assert kinds == [*RIGHTS, "Service", "PersistentVolumeClaim", "Job"]
    for wrong in (["--conf", "x=1"], ["--volume", "lake"], ["--volume", "a:/lake", "--volume", "b:/lake"]):
        assert CliRunner().invoke(app, ["spark", "submit", "--dry-run", *wrong, "replay"]).exit_code == 2
