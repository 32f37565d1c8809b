"""A scenario may name a model's config.json: its S_kv is then the one that `prfaas kv` prints."""

from pathlib import Path

import pytest

from prfaas_ref.errors import UserError
from prfaas_ref.model.cache_shape import FOLDER, PUBLISHED
from prfaas_ref.scheduler.paper_data import MODEL_BYTES
from prfaas_ref.scheduler.scenario import EXAMPLE, parse_scenario


def with_config(path: Path) -> str:
    """The example scenario, its model replaced by this config.json."""
    head, _, rest = EXAMPLE.partition("[model]")
    return f'{head}[model]\nconfig = "{path}"\n\n[{rest.split("[", 1)[1]}'


@pytest.mark.parametrize(("name", "published"), list(zip(MODEL_BYTES, PUBLISHED, strict=True)))
def test_the_published_configs_give_the_paper_tables_sizes(name: str, published: str) -> None:
    kv = parse_scenario(with_config(FOLDER / f"{published}.json"), Path()).system.kv
    assert kv.bytes_per_token == MODEL_BYTES[name].bytes_per_token
    assert kv.fixed_bytes == pytest.approx(MODEL_BYTES[name].fixed_bytes, rel=1e-3)


def test_a_config_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        parse_scenario(with_config(tmp_path / "missing.json"), Path())
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 4, "model_type": "llama"}')
    with pytest.raises(UserError, match="without"):
        parse_scenario(with_config(tmp_path / "config.json"), Path())


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_may_be_named_as_prfaas_kv_names_it(name: str) -> None:
    named = with_config(Path()).replace('config = "."', f'name = "{name}"')
    assert (
        parse_scenario(named, Path()).system.kv
        == parse_scenario(with_config(FOLDER / f"{name}.json"), Path()).system.kv
    )
