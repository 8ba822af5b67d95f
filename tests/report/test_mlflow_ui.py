"""MLflow's own UI in a real browser: it lists the runs of a study, draws their curves, and opens
the report."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from rayfl.report.publish import log_report, publish_report
from rayfl.tracking.experiment_view import view_address
from rayfl.tracking.store import open_client
from tests.report.chromium import Tab, tab
from tests.report.conftest import Made

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning"),
]
PATIENCE = 90.0
TITLE = "Small & <small>"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def server(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """MLflow as `rayfl ui` starts it, on a free port."""
    url = f"http://127.0.0.1:{free_port()}"
    folder = tmp_path_factory.mktemp("server")
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        made.uri,
        "--workers",
        "1",
    ]
    command += ["--host", "127.0.0.1", "--port", url.rpartition(":")[2]]
    # A test tells nobody of itself; `rayfl ui` leaves that to its user.
    quiet = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
    with (folder / "log").open("wb") as log:
        # A session of its own, so that the server's workers end with it.
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, env=quiet, start_new_session=True
        )
    try:
        wait_for(f"{url}/health", process, folder / "log")
        yield url
    finally:
        os.killpg(process.pid, 15)
        try:
            process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise AssertionError(f"MLflow's server does not answer:\n{log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def logged(made: Made, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report among the runs; the part of the address that shows it."""
    folder = tmp_path_factory.mktemp("report")
    publish_report(made.result, folder, ["curves"])
    return log_report(made.result, folder, made.uri, TITLE)


@pytest.fixture(scope="module")
def browser(server: str, logged: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with tab(tmp_path_factory.mktemp("profile")) as opened:
        opened.size(1500, 950)
        opened.open(f"{server}/health")
        # The assistant's panel would take a third of the window.
        opened.js("localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')")
        opened.js("localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false')")
        yield opened


@pytest.fixture(scope="module")
def experiment(made: Made) -> str:
    return str(open_client(made.uri).get_experiment_by_name(TITLE).experiment_id)


def go(browser: Tab, server: str, place: str) -> None:
    """A fresh load: a change of what follows `#` alone would not be one."""
    browser.call("Page.navigate", url="about:blank")
    browser.open(f"{server}/{place}")


TEXT = "document.body.innerText"


def test_the_list_shows_runs_with_the_tags_that_tell_them_apart(
    browser: Tab, server: str, experiment: str
) -> None:
    go(browser, server, view_address(experiment))
    heads = "[...document.querySelectorAll('[role=columnheader][col-id]')]"
    drawn = f"{heads}.some((e) => e.getAttribute('col-id') === 'metrics.`test/accuracy`')"
    browser.until(
        f"{TEXT}.includes('FedAvg, noisy, seed 0') && {TEXT}.includes('report tiny') && {drawn}",
        PATIENCE,
    )
    placed = browser.js(
        f"{heads}.map((e) => [e.getBoundingClientRect().left, e.getAttribute('col-id')])"
    )
    columns = [name for _, name in sorted(placed) if name.startswith(("tags.", "metrics."))]
    # What a run came to is seen without scrolling, and then what tells it from the others.
    sums = ["test/accuracy", "last10/test/accuracy", "best/test/accuracy"]
    assert columns[:3] == [f"metrics.`{name}`" for name in sums]
    assert [name for name in columns if name.startswith("tags.")][:2] == [
        "tags.`method`",
        "tags.`noise`",
    ]
    values = browser.js(
        "[...document.querySelectorAll('[col-id=\"tags.`method`\"]')].map((e) => e.innerText)"
    )
    assert {"fedavg", "fedds", "fedrn", "local_k"} <= set(values)
    assert "Model training" in browser.js(TEXT)


def test_tags_filter_runs(browser: Tab, server: str, experiment: str) -> None:
    wanted = quote("tags.method = 'fedrn' and tags.seed = '1'")
    go(
        browser,
        server,
        f"#/experiments/{experiment}/runs?workflowType=machine_learning&searchFilter={wanted}",
    )
    # The count stands there some time before the row does.
    browser.until(
        f"/1\\s*matching run/.test({TEXT}) && {TEXT}.includes('FedRN, noisy, seed 1')", PATIENCE
    )
    assert "FedAvg" not in browser.js(TEXT)


def test_comparing_draws_the_curves_of_accuracy(
    browser: Tab, server: str, made: Made, experiment: str
) -> None:
    found = open_client(made.uri).search_runs([experiment], "tags.seed = '0'")
    words = {
        "runs": json.dumps([run.info.run_id for run in found]),
        "experiments": json.dumps([experiment]),
        "metric": '"test/accuracy"',
        "plot_metric_keys": '["test/accuracy"]',
        "plot_layout": "{}",
        "x_axis": "step",
        "y_axis_scale": "linear",
        "line_smoothness": "1",
        "show_point": "false",
        "deselected_curves": "[]",
        "last_linear_y_axis_range": "[]",
    }
    go(browser, server, f"#/metric?{urlencode(words, quote_via=quote)}")
    client = open_client(made.uri)
    histories = [client.get_metric_history(run.info.run_id, "test/accuracy") for run in found]
    distinct = {tuple(point.value for point in history) for history in histories}
    # The viewer draws each curve twice, once of them for a band.
    drawn = "[...document.querySelectorAll('.scatterlayer path.js-line')]"
    shapes = f"new Set({drawn}.map((l) => l.getAttribute('d')))"
    browser.until(f"{shapes}.size === {len(distinct)}", PATIENCE)
    assert len(found) == 4
    browser.until(
        f"{TEXT}.includes('FedDS, noisy, seed 0') && {TEXT}.includes('test/accuracy')", PATIENCE
    )


def test_charts_of_many_runs_begin_with_accuracy(
    browser: Tab, server: str, experiment: str
) -> None:
    go(browser, server, f"{view_address(experiment)}&compareRunsMode=CHART")
    browser.until(
        f"{TEXT}.includes('test/accuracy') && {TEXT}.includes('labels/precision')", PATIENCE
    )
    browser.until(
        "document.querySelectorAll('.js-plotly-plot .scatterlayer path.js-line').length > 3",
        PATIENCE,
    )
    assert "clients/participants" not in browser.js(TEXT)


def test_the_report_opens_and_works_in_the_viewer(browser: Tab, server: str, logged: str) -> None:
    browser.events.clear()
    go(browser, server, logged)
    browser.until("Boolean(document.querySelector('iframe'))", PATIENCE)
    inner = browser.frame("Boolean(document.querySelector('.chart svg path'))", PATIENCE)
    assert inner("document.querySelector('h1').textContent") == TITLE
    assert inner("document.querySelectorAll('.chart svg path').length") > 10
    assert inner("document.querySelectorAll('#table tbody tr').length") == 6
    inner("document.getElementById('theme').click()")
    assert inner("document.documentElement.dataset.theme") == "dark"


def test_figures_of_a_run_are_shown(browser: Tab, server: str, made: Made, experiment: str) -> None:
    run = open_client(made.uri).search_runs([experiment], "tags.method = 'fedds'")[0]
    go(
        browser,
        server,
        f"#/experiments/{experiment}/runs/{run.info.run_id}/artifacts/figures/learning_curve.png",
    )
    assert (
        browser.until(
            "Math.max(...[...document.querySelectorAll('img')].map((i) => i.naturalWidth))",
            PATIENCE,
        )
        == 910
    )


def test_the_page_of_a_model_shows_its_metrics_on_its_dataset(
    browser: Tab, server: str, made: Made, experiment: str
) -> None:
    client = open_client(made.uri)
    model = client.search_logged_models([experiment])[0]
    place = f"#/experiments/{experiment}/models/{model.model_id}?workflowType=machine_learning"
    go(browser, server, place)
    browser.until(f"{TEXT}.includes('test/accuracy') && {TEXT}.includes('digits test')", PATIENCE)
    assert model.name in browser.js(TEXT)


def test_the_clients_of_a_run_are_shown_as_a_table(
    browser: Tab, server: str, made: Made, experiment: str
) -> None:
    run = open_client(made.uri).search_runs([experiment], "tags.method = 'fedds'")[0]
    place = f"#/experiments/{experiment}/runs/{run.info.run_id}/artifacts/clients.json"
    go(browser, server, f"{place}?workflowType=machine_learning")
    cells = "[...document.querySelectorAll('[role=columnheader], th')].map((e) => e.innerText)"
    browser.until(f"{cells}.some((text) => text.includes('reliability'))", PATIENCE)
    heads = " ".join(browser.js(cells))
    assert "wrong labels" in heads
    assert "samples" in heads


def test_a_run_shows_its_description_its_source_and_its_dataset(
    browser: Tab, server: str, made: Made, experiment: str
) -> None:
    run = open_client(made.uri).search_runs([experiment], "tags.method = 'fedrn'")[0]
    go(browser, server, f"#/experiments/{experiment}/runs/{run.info.run_id}")
    browser.until(f"{TEXT}.includes('digits over 4 clients')", PATIENCE)
    digest = run.data.tags["scenario"][:36]
    browser.until(f"{TEXT}.includes('digits ({digest})')", PATIENCE)
