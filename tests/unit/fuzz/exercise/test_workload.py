"""The workload is sound: what it names can be asked, and has one name."""

from __future__ import annotations

import re

from pytest_vllm_regress.fuzz.exercise.workload import described, options_of, prompt_of, stations


def test_stations_acts_and_requests_have_a_name_each() -> None:
    names = [station.name for station in stations()]
    assert len(names) == len(set(names))
    for station in stations():
        acts = [act.name for act in station.acts]
        assert len(acts) == len(set(acts)), station.name
        assert acts, station.name


def test_an_act_asks_one_kind_of_thing() -> None:
    for station in stations():
        for act in station.acts:
            kinds = [bool(act.items()), bool(act.exchanges), bool(act.call)]
            assert sum(kinds) == 1, (station.name, act.name)
            assert bool(act.exchanges) <= (station.front == "serve")
            assert all(re.match(r"(GET|POST) /", one.to) for one in act.exchanges)


def test_a_prompt_has_the_length_and_bytes_that_it_names() -> None:
    items = {
        f"{act.name}/{item.id}": item
        for station in stations()
        if station.name == "plain"
        for act in station.acts
        for item in act.items()
    }
    assert len(prompt_of(items["length/8"])) == 512
    assert prompt_of(items["texts/15"]) == {"prompt_token_ids": [65, 66, 67]}
    assert prompt_of(items["texts/13"]) == {"prompt_token_ids": list(b"x\xe5\x8c")}
    assert options_of(items["length/8"]) == {"max_tokens": 8, "temperature": 0.0}
    assert "max_tokens" not in options_of(items["length/1"])


def test_a_difference_says_what_was_asked() -> None:
    assert "GET /health" in described("server/other routes/1")
    assert "two" in described("plain/stop/1")
    assert described("streams/health") == "check_health"
    assert described("parsers/hermes/abc 'text'") == ""
