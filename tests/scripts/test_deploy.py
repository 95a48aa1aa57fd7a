"""The files for Kubernetes hold to its schemas, and name flags, paths and ports that trillm has. None saw a cluster."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import kubernetes_validate
import msgspec
import pytest
import yaml

from app.auth import PUBLIC_PATHS
from app.cli import make_app
from app.notify import STOP_SECONDS
from app.settings import Settings
from tests.helpers.custom_resources import CUSTOM_KINDS, CustomResource, LeaderWorkerSet, ServiceMonitor

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "scripts" / "deploy"
VERSIONS = ("1.30", "1.37")
"""Of Kubernetes: from the first one where a preStop may sleep, to the newest whose schemas are at hand."""
INJECTED = {"LWS_LEADER_ADDRESS": "trillm-0.trillm.default", "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1"}
"""What LeaderWorkerSet gives to each container."""

Document = dict[str, Any]
DOCUMENTS: dict[str, list[Document]] = {
    path.name: list(yaml.safe_load_all(path.read_text())) for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
}
EVERY = [pytest.param(one, id=f"{name}-{one['kind']}") for name, documents in DOCUMENTS.items() for one in documents]


@attrs.frozen
class Pod:
    """One template of pods, with its one container."""

    name: str
    template: Document

    @property
    def container(self) -> Document:
        (container,) = self.template["spec"]["containers"]
        return container

    @property
    def waits(self) -> int:
        """Seconds from when it is to leave to SIGTERM."""
        return self.container["lifecycle"]["preStop"]["sleep"]["seconds"]

    def settings(self, monkeypatch: pytest.MonkeyPatch) -> Settings:
        """As `trillm serve` would have them here. Fails for a flag or a variable that sets nothing."""
        settings = {f"TRILLM_{field.name.upper()}" for field in attrs.fields(Settings)}
        for variable in self.container.get("env", []):
            assert variable["name"] in {"VLLM_API_KEY", "TRILLM_MODEL", *settings} or variable["name"].startswith(
                "NCCL_"
            )
            monkeypatch.setenv(variable["name"], variable.get("value", "a-secret-that-is-long-enough-to-be-one"))
        words = [re.sub(r"\$\((\w+)\)", lambda found: INJECTED[found[1]], word) for word in self.container["args"]]
        _, bound, _ = make_app().parse_args(words, exit_on_error=False, print_error=False)
        return bound.kwargs.get("settings") or Settings()


def pods() -> Iterator[Pod]:
    for name, documents in DOCUMENTS.items():
        for document in documents:
            if document["kind"] == "Deployment":
                yield Pod(name, document["spec"]["template"])
            elif document["kind"] == "LeaderWorkerSet":
                parts = document["spec"]["leaderWorkerTemplate"]
                yield Pod(f"{name}-leader", parts["leaderTemplate"])
                yield Pod(f"{name}-worker", parts["workerTemplate"])


PODS = [pytest.param(pod, id=pod.name) for pod in pods()]


def as_deployment(template: Document) -> Document:
    """For the schema of its template."""
    spec = {"selector": {"matchLabels": template["metadata"]["labels"]}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "of-a-custom-one"}, "spec": spec}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("document", EVERY)
def test_each_resource_holds_to_its_schema(document, version):
    if document["kind"] not in CUSTOM_KINDS:
        kubernetes_validate.validate(document, version, strict=True)
        return
    resource: Any = msgspec.convert(document, CustomResource)
    if isinstance(resource, LeaderWorkerSet):
        parts = resource.spec.leaderWorkerTemplate
        for template in filter(None, (parts.leaderTemplate, parts.workerTemplate)):
            kubernetes_validate.validate(as_deployment(template), version, strict=True)


def test_what_no_schema_knows_is_refused():
    document = msgspec.json.decode(msgspec.json.encode(DOCUMENTS["server.yaml"][-1]))
    document["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="livenesProbe"):
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)
    monitor = msgspec.json.decode(msgspec.json.encode(DOCUMENTS["service-monitor.yaml"][0]))
    monitor["spec"]["endpoints"][0]["intervall"] = "1s"
    with pytest.raises(msgspec.ValidationError, match="intervall"):
        msgspec.convert(monitor, CustomResource)


@pytest.mark.parametrize("pod", PODS)
def test_the_flags_exist_and_leave_time_to_finish_answers(pod, monkeypatch):
    settings = pod.settings(monkeypatch)
    answering = 0 if settings.headless else settings.shutdown_timeout
    assert pod.template["spec"]["terminationGracePeriodSeconds"] >= pod.waits + answering + STOP_SECONDS


def test_the_hosts_of_one_engine_agree_and_stay_until_the_last_answer(monkeypatch):
    (document,) = (one for one in DOCUMENTS["multi-host.yaml"] if one["kind"] == "LeaderWorkerSet")
    leader, worker = (pod for pod in pods() if pod.name.startswith("multi-host"))
    leading, following = leader.settings(monkeypatch), worker.settings(monkeypatch)
    assert (leading.node_rank, following.node_rank) == (0, 1)
    assert (leading.headless, following.headless) == (False, True)
    own = ("node_rank", "headless", "host", "port", "shutdown_timeout")
    assert attrs.evolve(leading, **{name: attrs.asdict(following)[name] for name in own}) == following
    parts = document["spec"]["leaderWorkerTemplate"]
    assert parts["size"] == leading.nnodes == int(INJECTED["LWS_GROUP_SIZE"])
    for pod in (leader, worker):
        assert int(pod.container["resources"]["limits"]["nvidia.com/gpu"]) * parts["size"] == leading.parallel.world
    assert worker.waits >= leader.waits + leading.shutdown_timeout
    keys = [volume["secret"]["items"] for volume in worker.template["spec"]["volumes"] if "secret" in volume]
    (mount,) = (mount["mountPath"] for mount in worker.container["volumeMounts"] if mount["name"] == "keys")
    assert [Path(mount) / item["path"] for items in keys for item in items] == [following.node_key_file]


def test_what_has_no_password_is_closed_to_all_but_these_pods():
    (policy,) = (one for one in DOCUMENTS["multi-host.yaml"] if one["kind"] == "NetworkPolicy")
    labels = [pod.template["metadata"]["labels"] for pod in pods() if pod.name.startswith("multi-host")]
    wanted = policy["spec"]["podSelector"]["matchLabels"].items()
    assert all(wanted <= one.items() for one in labels)
    among, outside = policy["spec"]["ingress"]
    assert among == {"from": [{"podSelector": policy["spec"]["podSelector"]}]}
    assert outside == {"ports": [{"protocol": "TCP", "port": "http"}]}


@pytest.mark.parametrize("pod", PODS)
def test_probes_ask_what_needs_no_key_at_the_port_that_is_listened_on(pod, monkeypatch):
    settings = pod.settings(monkeypatch)
    ports = {port["name"]: port["containerPort"] for port in pod.container.get("ports", [])}
    probes = {name: pod.container[name] for name in pod.container if name.endswith("Probe")}
    for probe in probes.values():
        assert probe["httpGet"]["path"] in PUBLIC_PATHS
        assert ports[probe["httpGet"]["port"]] == settings.port
    if "http" in ports:
        assert settings.host == "0.0.0.0"
        assert {name: probe["httpGet"]["path"] for name, probe in probes.items()} == {
            "startupProbe": "/ready",
            "livenessProbe": "/health",
            "readinessProbe": "/ready",
        }
        begins = probes["startupProbe"]
        assert begins["periodSeconds"] * begins["failureThreshold"] >= 1800


@pytest.mark.parametrize("pod", PODS)
def test_what_is_mounted_is_there_and_everything_else_is_only_read(pod):
    volumes = {volume["name"] for volume in pod.template["spec"]["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in pod.container["volumeMounts"]}
    assert set(mounts.values()) == volumes
    assert pod.container["securityContext"]["readOnlyRootFilesystem"]
    assert {"/cache", "/tmp"} <= mounts.keys()


@pytest.mark.parametrize("pod", PODS)
def test_no_service_is_taken_for_a_setting(pod):
    """Kubernetes tells of the service `trillm` by TRILLM_PORT=tcp://…, unless it is asked not to."""
    assert pod.template["spec"]["enableServiceLinks"] is False
    assert "TRILLM_PORT" in {f"TRILLM_{field.name.upper()}" for field in attrs.fields(Settings)}


def test_services_find_pods_that_listen_and_the_monitor_finds_all_services():
    everything = [document for documents in DOCUMENTS.values() for document in documents]
    services = [document for document in everything if document["kind"] == "Service"]
    (monitor,) = (
        msgspec.convert(document, ServiceMonitor) for document in everything if document["kind"] == "ServiceMonitor"
    )
    assert services
    for service in services:
        wanted, labels = service["spec"]["selector"].items(), service["metadata"]["labels"].items()
        found = [pod for pod in pods() if wanted <= pod.template["metadata"]["labels"].items()]
        assert found
        for pod in found:
            names = {port["name"] for port in pod.container["ports"]}
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= names
        assert monitor.spec.selector.matchLabels.items() <= labels
        for endpoint in monitor.spec.endpoints:
            assert endpoint.port in {port["name"] for port in service["spec"]["ports"]}
            assert endpoint.path in PUBLIC_PATHS


def test_claims_that_pods_name_exist_beside_them():
    for documents in DOCUMENTS.values():
        claims = {one["metadata"]["name"] for one in documents if one["kind"] == "PersistentVolumeClaim"}
        named = set(re.findall(r"'claimName': '([^']+)'", str(documents)))
        assert named == claims


def test_the_image_has_all_packages_and_nothing_that_is_not_there():
    text = (DEPLOY / "Dockerfile").read_text()
    copied = {word for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE) for word in line.split()[:-1]}
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {name.rstrip("*") for name in packages} <= copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    used = set(re.findall(r"/opt/trillm/(scripts/\w+)", text))
    assert used <= copied
    assert "EXPOSE 8000" in text
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {pod.container["image"] for pod in pods()} == {f"trillm:{version}"}
