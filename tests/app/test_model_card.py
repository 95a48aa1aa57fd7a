"""What /v1/models says of a model that is served under other names."""

from __future__ import annotations

from app.model_card import ModelCard


def test_the_root_is_the_model_whatever_it_is_served_as():
    assert ModelCard(("gpt-4o", "other"), 1, checkpoint_name="owner/model").root == "owner/model"
    assert ModelCard(("gpt-4o", "other"), 1).root == "gpt-4o"
