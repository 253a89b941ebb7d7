"""The catalog in which lake tables have names."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from sluice.contract import catalog_names
from sluice.settings.addresses import catalog_address
from sluice.settings.section import Section
from sluice.settings.values import Duration

Kind = Literal["none", "hive", "glue", "unity"]


class CatalogSettings(Section):
    """A catalog that lists the lake tables by name."""

    kind: Kind = Field(
        "none",
        description="the catalog in which each lake table is registered by name, so that engines find it without its "
        "path: hive (a Hive metastore), glue (AWS Glue), unity (Unity Catalog), none. A catalog that fails delays no "
        "commit",
    )
    name: str = Field(
        "",
        description="the name of a lake table, as schema.table, or catalog.schema.table for unity: letters, digits, _ "
        "and the placeholders of lake.path. Letters become lowercase, and any other character becomes _. By default "
        "{schema}.{target}, and {pipeline}.{schema}.{target} for unity",
    )
    uri: Annotated[str, AfterValidator(catalog_address)] = Field(
        "",
        description="address of the catalog: thrift://HOST:9083 for hive, https://HOST for unity. glue needs none: the "
        "region comes from lake.options or from the environment",
    )
    token: SecretStr = Field(
        SecretStr(""),
        description="bearer token for unity. Keep it out of the file: use SLUICE_CATALOG__TOKEN_FILE",
    )
    create_schemas: bool = Field(
        default=False,
        description="create a missing schema (a database of Hive or Glue); with false, a missing schema is a problem",
    )
    timeout: Duration = Field(20.0, ge=1, le=300, description="the longest wait for one answer of the catalog")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.kind == "none":
            return self
        if problem := catalog_names.misspelled(self.template, self.kind):
            raise ValueError(problem)
        schemes = {"hive": ("thrift://",), "unity": ("https://", "http://"), "glue": ("", "https://", "http://")}
        wanted = schemes[self.kind]
        if not any(self.uri.startswith(scheme) if scheme else not self.uri for scheme in wanted):
            raise ValueError(f"catalog.uri of kind {self.kind} begins with {' or '.join(filter(None, wanted))}")
        return self

    @property
    def template(self) -> str:
        """Of the names, the default one where none is given."""
        return self.name or catalog_names.DEFAULT_TEMPLATES.get(self.kind, "")
