"""Log a session to MLflow, a run per arm: python log_to_mlflow.py summary.json (slo-bench report ... --format json)."""

import json
import sys
from pathlib import Path

import mlflow

summary = json.loads(Path(sys.argv[1]).read_text())
for arm in summary["arms"]:
    with mlflow.start_run(run_name=arm["label"]):
        figures = {**arm, **{f"anchor_{name}": value for name, value in (arm["anchor"] or {}).items()}}
        mlflow.log_metrics({name: value for name, value in figures.items() if type(value) in (int, float)})
        mlflow.log_params({name: value for name, value in summary["load"].items() if type(value) is not list})
        mlflow.set_tags({"session": summary["label"], "simulated": summary["is_simulated"], "model": arm["model"]})
        mlflow.log_artifact(sys.argv[1])
