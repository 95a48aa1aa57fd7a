"""What two custom resources may hold, as far as scripts/deploy/kubernetes uses them: their schemas come in no package.

Written from their Go types: LeaderWorkerSet of leaderworkerset.x-k8s.io/v1 (LWS 0.9) and ServiceMonitor of
monitoring.coreos.com/v1 (prometheus-operator 0.93). What is not named here is refused, so a field that is used for the
first time has to be looked up, and added. Templates of pods are Kubernetes' own, and held to its schema.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Labels = dict[str, str]
Template = dict[str, Any]
Duration = Annotated[str, Meta(pattern=r"^([0-9]+(ms|s|m|h))+$")]


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields as the resource spells them."""


class Metadata(Strict, frozen=True):
    name: Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
    labels: Labels = {}


class LeaderWorkerTemplate(Strict, frozen=True):
    workerTemplate: Template
    leaderTemplate: Template | None = None
    size: Annotated[int, Meta(ge=1)] = 1
    restartPolicy: Literal["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"] = "RecreateGroupOnPodRestart"


class LeaderWorkerSetSpec(Strict, frozen=True):
    leaderWorkerTemplate: LeaderWorkerTemplate
    replicas: Annotated[int, Meta(ge=0)] = 1
    startupPolicy: Literal["LeaderCreated", "LeaderReady"] = "LeaderCreated"


class LeaderWorkerSet(Strict, frozen=True, tag="LeaderWorkerSet", tag_field="kind"):
    apiVersion: Literal["leaderworkerset.x-k8s.io/v1"]
    metadata: Metadata
    spec: LeaderWorkerSetSpec


class LabelSelector(Strict, frozen=True):
    matchLabels: Labels


class Endpoint(Strict, frozen=True):
    port: str
    path: Annotated[str, Meta(pattern="^/")] = "/metrics"
    interval: Duration | None = None
    scrapeTimeout: Duration | None = None


class ServiceMonitorSpec(Strict, frozen=True):
    selector: LabelSelector
    endpoints: Annotated[list[Endpoint], Meta(min_length=1)]


class ServiceMonitor(Strict, frozen=True, tag="ServiceMonitor", tag_field="kind"):
    apiVersion: Literal["monitoring.coreos.com/v1"]
    metadata: Metadata
    spec: ServiceMonitorSpec


CustomResource = LeaderWorkerSet | ServiceMonitor
CUSTOM_KINDS = ("LeaderWorkerSet", "ServiceMonitor")
