"""Placement maps: every stay is drawn, where and when it was, and touching jobs have different colours."""

from __future__ import annotations

import itertools

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

import ddlsched
from ddlsched.comparisons.charts import placement_map as placement_map_module
from ddlsched.comparisons.charts.placement_map import placement_boxes, placement_map
from ddlsched.comparisons.charts.style import JOB_COLOURS

BOX = ["from_s", "to_s", "bottom", "height", "colour"]
COLUMNS = ["job_id", "gpu", "server", "from_s", "to_s"]


def stays(*rows) -> pd.DataFrame:
    """(job, gpu, from, to), four GPUs a server."""
    return pd.DataFrame([(job, gpu, gpu // 4, from_s, to_s) for job, gpu, from_s, to_s in rows], columns=COLUMNS)


@st.composite
def placements(draw) -> pd.DataFrame:
    rows = []
    for job in range(draw(st.integers(1, 8))):
        gpus = draw(st.sets(st.integers(0, 4), min_size=1, max_size=4))
        from_s = draw(st.integers(0, 5))
        rows += [(f"job {job}", gpu, float(from_s), float(from_s + draw(st.integers(1, 4)))) for gpu in gpus]
    return stays(*rows)


def instants(table: pd.DataFrame, boxes: pd.DataFrame):
    """The stays on each GPU and the rectangles over it, at each time between events."""
    there, drawn = (list(frame.itertuples()) for frame in (table, boxes))
    for gpu, time_s in itertools.product(range(5), range(10)):
        stays = [stay for stay in there if stay.gpu == gpu and stay.from_s <= time_s < stay.to_s]
        shown = [box for box in drawn if box.first_gpu <= gpu <= box.last_gpu and box.from_s <= time_s < box.to_s]
        yield gpu, stays, sorted(shown, key=lambda box: box.bottom)


@pytest.mark.long
@given(placements())
def test_at_each_time_the_jobs_of_a_gpu_share_its_row(table):
    for gpu, there, shown in instants(table, placement_boxes(table)):
        assert sorted(box.job_id for box in shown) == sorted(stay.job_id for stay in there)
        assert all(box.jobs == len(there) for box in shown)
        if len(shown) == 1:
            (box,) = shown
            assert (box.bottom, box.height) == (box.first_gpu, box.last_gpu - box.first_gpu + 1)
            continue
        for place, box in enumerate(shown):
            assert box.bottom == pytest.approx(gpu + place / len(shown))
            assert box.height == 1 / len(shown)


@pytest.mark.long
@given(placements())
def test_without_sharing_the_job_that_came_first_is_shown(table):
    for _, there, shown in instants(table, placement_boxes(table, shared=False)):
        assert len(shown) == min(len(there), 1)
        for box in shown:
            assert box.stay_from_s == min(stay.from_s for stay in there)


def test_a_job_alone_on_neighbouring_gpus_of_a_server_is_one_rectangle():
    (box,) = placement_boxes(stays(*(("a", gpu, 1.0, 3.0) for gpu in range(4)))).to_dict("records")
    assert (box["first_gpu"], box["last_gpu"], box["bottom"], box["height"]) == (0, 3, 0, 4)
    two_servers = placement_boxes(stays(*(("a", gpu, 1.0, 3.0) for gpu in range(2, 6))))
    assert sorted(zip(two_servers["first_gpu"], two_servers["last_gpu"], strict=True)) == [(2, 3), (4, 5)]


def test_rectangles_name_the_whole_stay():
    boxes = placement_boxes(stays(("a", 0, 0.0, 10.0), ("b", 0, 4.0, 6.0)))
    own = boxes[boxes["job_id"] == "a"].sort_values("from_s")
    assert list(zip(own["from_s"], own["to_s"], own["jobs"], strict=True)) == [(0, 4, 1), (4, 6, 2), (6, 10, 1)]
    assert set(zip(own["stay_from_s"], own["stay_to_s"], strict=True)) == {(0.0, 10.0)}


def test_a_job_that_comes_back_has_two_stays():
    boxes = placement_boxes(stays(("a", 0, 0.0, 1.0), ("a", 0, 5.0, 6.0)))
    assert sorted(boxes["stay_from_s"]) == [0.0, 5.0]


@pytest.mark.slow
def test_jobs_that_touch_have_different_colours_in_a_real_run():
    result = ddlsched.simulate(ddlsched.microsoft_160(seed=1, scale=0.005), scheduler="srsf-1")
    rows = []
    for job in result.jobs.itertuples():
        rows += [(job.job_id, gpu, job.start_s, job.finish_s) for gpu in result.gpus_of(job.job_id)]
    boxes = placement_boxes(stays(*rows)).assign(top=lambda box: box["bottom"] + box["height"])
    left, right, low, high = (boxes[name].to_numpy() for name in ("from_s", "to_s", "bottom", "top"))
    beside = (right[:, None] == left) & (low[:, None] < high - 1e-9) & (low < high[:, None] - 1e-9)
    above = (abs(high[:, None] - low) < 1e-9) & (left[:, None] < right) & (left < right[:, None])
    job, colour = boxes["job_id"].to_numpy(), boxes["colour"].to_numpy()
    one, other = np.nonzero((beside | above) & (job[:, None] != job))
    assert len(one) > 1000
    assert (colour[one] != colour[other]).all()


def test_maps_separate_servers_and_go_down_from_the_first():
    figure = placement_map(stays(("a", 0, 0.0, 4.0), ("b", 9, 2.0, 5.0)), [4, 4, 4])
    (axes,) = figure.axes
    assert axes.get_ylim() == (12, 0)
    assert axes.get_xlim() == (0, 5)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "2"]
    (lines,) = [c for c in axes.collections if not isinstance(c, PolyCollection)]
    assert [segment[0][1] for segment in lines.get_segments()] == [4, 8]
    (boxes,) = [c for c in axes.collections if isinstance(c, PolyCollection)]
    assert [path.get_extents().bounds for path in boxes.get_paths()] == [(0, 0, 4, 1), (2, 9, 3, 1)]


def test_servers_may_differ_in_size():
    (axes,) = placement_map(stays(("a", 0, 0.0, 4.0)), [4, 8, 2]).axes
    assert axes.get_ylim() == (14, 0)
    assert axes.get_yticks().tolist() == [2, 8, 13]
    assert axes.get_ylabel() == "Server\n(2 to 8 GPUs each)"


@pytest.mark.long
def test_the_label_of_servers_fits_beside_a_low_map():
    (axes,) = placement_map(stays(), [1], title="title").axes
    axes.figure.draw_without_rendering()
    label, title = axes.yaxis.label.get_window_extent(), axes.figure.texts[0].get_window_extent()
    assert label.y1 < title.y0
    (axes,) = placement_map(stays(), [8] * 8).axes
    assert axes.get_ylabel() == "Server (8 GPUs each)"


@pytest.mark.parametrize(("gpus", "inches"), [(13, 1.8), (14, 1.824), (40, 3.54), (68, 5.388), (69, 5.4), (1000, 5.4)])
def test_a_map_is_as_high_as_its_gpus_need_within_bounds(gpus: int, inches: float):
    assert placement_map(stays(), [gpus]).get_figheight() == pytest.approx(inches)


@pytest.mark.long
def test_a_job_is_named_once_a_server_in_the_middle_of_its_largest_box():
    figure = placement_map(stays(("a", 0, 0.0, 2.0), ("a", 1, 4.0, 8.0), ("b", 0, 2.0, 8.0), ("c", 2, 0.0, 0.1)), [4])
    (axes,) = figure.axes
    assert {(name.get_text(), *name.get_position()) for name in axes.texts} == {("a", 6.0, 1.5), ("b", 5.0, 0.5)}
    assert all(name.get_clip_on() for name in axes.texts)  # who zooms in sees no name outside


def test_a_map_of_nothing():
    (axes,) = placement_map(stays(), [4]).axes
    assert axes.get_ylim() == (4, 0)
    assert len(JOB_COLOURS) == len(set(JOB_COLOURS))


STEPS = {1: (1, 17), 2: (18, 34), 5: (35, 85), 10: (86, 170), 20: (171, 340), 50: (341, 850), 100: (851, 1700)}
MORE_STEPS = {200: (1701, 3400), 500: (3401, 8500), 1000: (8501, 20_000)}


@pytest.mark.parametrize(
    ("servers", "step"), [(servers, step) for step, ends in (STEPS | MORE_STEPS).items() for servers in ends]
)
def test_at_most_17_servers_have_numbers_unless_there_are_very_many(servers: int, step: int):
    axes = Figure().add_subplot()
    placement_map_module._mark_servers(axes, np.arange(servers + 1), 1.0)
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == [str(number) for number in range(0, servers, step)]
    assert axes.get_yticks().tolist() == [number + 0.5 for number in range(0, servers, step)]
    assert {tick.tick1line.get_markersize() for tick in axes.yaxis.get_major_ticks()} == {0 if step == 1 else 2}


@pytest.mark.parametrize(("row_points", "lines"), [(1.5, 0), (1.6, 1)])
def test_servers_have_lines_between_them_where_each_has_more_than_3_points(row_points: float, lines: int):
    axes = Figure().add_subplot()
    placement_map_module._mark_servers(axes, np.array([0, 2, 4]), row_points)
    assert len(axes.collections) == lines


@pytest.mark.parametrize(
    ("first_gpu", "row_points", "label"),
    [
        ([0, 1, 2], 60.0, "Server (1 GPU each)"),
        ([0, 1, 2], 59.0, "Server\n(1 GPU each)"),
        ([0, 1, 3], 60.0, "Server (1 to 2 GPUs each)"),
        ([0, 2, 4], 30.0, "Server (2 GPUs each)"),
    ],
)
def test_the_label_of_servers_has_two_lines_beside_a_low_map(first_gpu: list[int], row_points: float, label: str):
    axes = Figure().add_subplot()
    placement_map_module._mark_servers(axes, np.array(first_gpu), row_points)
    assert axes.get_ylabel() == label


def test_boxes_have_edges_where_these_leave_something_of_them():
    _, axes = plt.subplots()
    boxes = pd.DataFrame([(0.0, 1.0, 0, height, 0) for height in (1.0, 0.9)], columns=BOX)
    placement_map_module._draw_boxes(axes, boxes, placement_map_module._LEAST_EDGED_POINTS)
    (drawn,) = axes.collections
    assert np.asarray(drawn.get_linewidth()).tolist() == [0.25, 0.0]
    plt.close()
