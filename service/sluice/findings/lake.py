"""Kinds of findings about the object store and the lake."""

from sluice.findings.kind import Kind, Step, kind

LAKE: tuple[Kind, ...] = (
    kind(
        "store.reach",
        "c",
        Step.ELSEWHERE,
        "the object store cannot be reached, or refuses",
        "address, credentials, region, policy",
    ),
    kind(
        "store.create",
        "c",
        Step.ELSEWHERE,
        "the store does not honor create-only (If-None-Match): two writers could both succeed",
        "another store",
    ),
    kind("store.overwrite", "c", Step.ELSEWHERE, "the store does not return what was just written", "another store"),
    kind("store.list", "c", Step.ELSEWHERE, "the store does not list what was just written, in order", "another store"),
    kind(
        "store.multipart",
        "c",
        Step.ELSEWHERE,
        "large objects cannot be stored in parts",
        "the permission to do so (s3:PutObject, s3:AbortMultipartUpload), or another store",
    ),
    kind("store.range", "c", Step.ELSEWHERE, "parts of objects cannot be read, which Spark needs", "another store"),
    kind("store.delimiter", "c", Step.ELSEWHERE, "folders cannot be listed, which Spark needs", "another store"),
    kind(
        "store.delete",
        "cw",
        Step.ELSEWHERE,
        "objects cannot be deleted: leftovers of crashed writers stay forever",
        "the permission to delete below the prefix (deploy/object-store)",
    ),
    kind(
        "store.bulk_delete",
        "w",
        Step.ELSEWHERE,
        "several objects cannot be deleted at once, which Spark and VACUUM need",
        "another store, or `fs.s3a.multiobjectdelete.enable: false` in `apply.conf`",
    ),
    kind(
        "store.copy",
        "w",
        Step.ELSEWHERE,
        "objects cannot be copied within the store, which other tools may need",
        "nothing: Sluice copies none",
    ),
    kind(
        "store.etag",
        "i",
        Step.ELSEWHERE,
        "the store does not honor If-Match, which other writers of Delta tables may use",
        "nothing: Sluice does not use it",
    ),
    kind(
        "store.clock",
        "w",
        Step.ELSEWHERE,
        "the store's clock differs from the clock of this machine: requests are refused if the difference is minutes",
        "synchronize this machine's clock",
    ),
    kind(
        "store.plain", "w", Step.ELSEWHERE, "objects and requests go over the network unencrypted", "an https endpoint"
    ),
    kind(
        "spool.retention",
        "i",
        Step.ELSEWHERE,
        "the applier will delete objects from the spool, according to the configured `spool.retention`",
        "if you want to be able to apply them again to a lost lake, set a longer retention before you "
        "start with this configuration",
    ),
    kind(
        "lake.java", "c", Step.ELSEWHERE, "there is no Java 17 or newer, which Spark needs", "install it, set JAVA_HOME"
    ),
    kind(
        "lake.versions",
        "c",
        Step.ELSEWHERE,
        "the versions of Spark, Delta and Scala do not match",
        "use the versions of the lock file, or the image",
    ),
    kind(
        "lake.jars",
        "ci",
        Step.ELSEWHERE,
        "a jar that Spark needs is missing or is not the one that was tested; missing ones in your own cache are "
        "fetched at the first start",
        "`sluice jars fetch`",
    ),
    kind(
        "lake.address",
        "c",
        Step.ELSEWHERE,
        "Spark cannot use an address or an option that ingest can",
        "`spool.uri`, `lake.uri` and their options",
    ),
    kind(
        "lake.unproven",
        "c",
        Step.ELSEWHERE,
        "no test has ever committed to a lake on this kind of store",
        "a lake on S3, a compatible store or a local disk",
    ),
    kind(
        "lake.writable",
        "c",
        Step.ELSEWHERE,
        "the lake cannot be written to",
        "the directory's rights, or the store's policy (deploy/object-store)",
    ),
    kind(
        "lake.protocol",
        "c",
        Step.ELSEWHERE,
        "an existing Delta table uses features that this version of Delta does not support",
        "a newer Sluice, or drop the feature from the table",
    ),
    kind(
        "lake.log_store",
        "i",
        Step.ELSEWHERE,
        "on S3 only one process at a time may commit to a Delta table",
        "run OPTIMIZE and VACUUM of these tables nowhere else",
    ),
    kind(
        "catalog.clash",
        "c",
        Step.ELSEWHERE,
        "two lake tables would have one name in the catalog, where all letters are small and other characters are `_`",
        "another `catalog.name`",
    ),
    kind(
        "catalog.name",
        "w",
        Step.ELSEWHERE,
        "a name is longer than catalogs keep: 128 characters for each part",
        "another `catalog.name`",
    ),
    kind(
        "catalog.away",
        "w",
        Step.ELSEWHERE,
        "the catalog does not answer. Tables are applied without it, and registered when it does",
        "`catalog.uri`, the network, the catalog's own log",
    ),
    kind(
        "catalog.refused",
        "w",
        Step.ELSEWHERE,
        "the catalog refuses what it is asked",
        "the rights of the applier's identity there, `catalog.token`",
    ),
    kind(
        "catalog.schema",
        "w",
        Step.ELSEWHERE,
        "the schema, or database, of a name is not in the catalog",
        "create it there, or `catalog.create_schemas: true`",
    ),
    kind(
        "catalog.taken",
        "w",
        Step.ELSEWHERE,
        "a name leads to something else in the catalog. It is never overwritten",
        "drop it there, or another `catalog.name`",
    ),
)
