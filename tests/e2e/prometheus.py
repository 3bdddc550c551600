"""Prometheus' answers, and what deploy/ asks of it."""

import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import yaml

from tests.e2e.services import ROOT

CONFIGURATION = ROOT / "deploy" / "prometheus"


class Prometheus:
    """The HTTP API of one that runs."""

    def __init__(self, address: str) -> None:
        self._base = f"http://{address}"

    def is_ready(self) -> bool:
        """Returns True if it answers queries."""
        try:
            with urllib.request.urlopen(f"{self._base}/-/ready"):
                return True
        except OSError:
            return False

    def get(self, path: str, **parameters: str) -> Any:
        """Returns the data of an answer. Fails if Prometheus says that there is none."""
        url = f"{self._base}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url) as answer:
            content = json.load(answer)
        assert content["status"] == "success", content
        return content["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Returns the labels and the value of each series of an expression now."""
        series = self.get("query", query=expression)["result"]
        return [(each["metric"], float(each["value"][1])) for each in series]

    def up(self) -> dict[str, int]:
        """Returns for each job how many of its targets answer."""
        return {labels["job"]: int(value) for labels, value in self.query("sum by (job) (up)")}

    def rules(self) -> dict[str, tuple[str, str]]:
        """Returns for each alert its health, "ok" when it has been evaluated, and state, by name."""
        rules = [rule for group in self.get("rules")["groups"] for rule in group["rules"]]
        return {rule["name"]: (rule["health"], rule["state"]) for rule in rules}


def alerts() -> dict[str, str]:
    """Returns the expression of each alert of deploy/prometheus, by name."""
    (group,) = yaml.safe_load((CONFIGURATION / "rules.yml").read_text())["groups"]
    return {rule["alert"]: rule["expr"] for rule in group["rules"]}


def panels() -> Iterator[tuple[str, str]]:
    """Yields the title of each panel of the dashboard with each of its expressions."""
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / "pagewire.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
