"""The section `checkpoint_storage`: the keys of each type, and where checkpoints are."""

from __future__ import annotations

import pytest

from tests.experiment.given import error_of, read_fragment


@pytest.mark.parametrize(
    ("written", "location"),
    [
        ("{}", None),
        ("{type: shared_fs, host_path: /shared/}", "/shared"),
        ("{type: shared_fs, host_path: /shared, storage_path: a/b}", "/shared/a/b"),
        ("{type: shared_fs, host_path: /shared, storage_path: /shared/c, propagation: rslave}", "/shared/c"),
        ("{type: directory, container_path: /checkpoints}", "/checkpoints"),
        ("{type: s3, bucket: b, access_key: a, secret_key: s, endpoint_url: 'http://a:9000/'}", "s3://b"),
        ("{type: s3, bucket: b, prefix: /pre/.//fix}", "s3://b/pre/fix"),
        ("{type: gcs, bucket: b, prefix: pre}", "gs://b/pre"),
        ("{type: azure, container: c, connection_string: x}", "az://c"),
        ("{type: azure, container: c, account_url: x, credential: y}", "az://c"),
        ("{url: 'memory://checkpoints'}", "memory://checkpoints"),
        ("{type: url, url: 'memory://checkpoints'}", "memory://checkpoints"),
    ],
)
def test_where_checkpoints_are(written: str, location: str | None) -> None:
    assert read_fragment(f"checkpoint_storage: {written}\n").checkpoint_storage.location == location


def test_values_of_s3_are_read() -> None:
    keys = "bucket: b, access_key: a, secret_key: s, prefix: p, endpoint_url: e"
    storage = read_fragment(f"checkpoint_storage: {{type: s3, {keys}}}\n").checkpoint_storage
    found = (storage.bucket, storage.access_key, storage.secret_key, storage.prefix, storage.endpoint_url)
    assert found == ("b", "a", "s", "p", "e")
    assert storage.propagation == "rprivate"


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        (
            "{type: shared_fs}",
            (
                "'checkpoint_storage' (mnist.yaml, line 1) has no 'host_path'.",
                "the key host_path of the type shared_fs.",
                "checkpoint_storage.host_path: /shared/checkpoints",
            ),
        ),
        (
            "{type: s3}",
            (
                "'checkpoint_storage' (mnist.yaml, line 1) has no 'bucket'.",
                "the key bucket of the type s3.",
                "checkpoint_storage.bucket: my-bucket",
            ),
        ),
        (
            "\n  type: gcs\n  bucket: b\n  secret_key: abcd",
            (
                "'checkpoint_storage.secret_key' (mnist.yaml, line 4) is not a key of the type gcs: it belongs to s3.",
                "one of bucket, prefix, save_experiment_best, save_trial_best, save_trial_latest.",
                "delete it, or write checkpoint_storage.type: s3",
            ),
        ),
        (
            "{bucket: b}",
            (
                (
                    "'checkpoint_storage.bucket' (mnist.yaml, line 1) is not a key of a storage"
                    " without a type: it belongs"
                    " to s3, gcs."
                ),
                "one of save_experiment_best, save_trial_best, save_trial_latest.",
                "delete it, or write checkpoint_storage.type: s3",
            ),
        ),
        (
            "{type: s3, bucket: b, prefix: a/../b}",
            (
                "'checkpoint_storage.prefix' (mnist.yaml, line 1) is 'a/../b' (str).",
                "a path without `..`.",
                "checkpoint_storage.prefix: checkpoints",
            ),
        ),
        (
            "{type: shared_fs, host_path: /shared, storage_path: ../a}",
            (
                "'checkpoint_storage.storage_path' (mnist.yaml, line 1) is '../a' (str).",
                "a relative path, or one below host_path, which is /shared.",
                "checkpoint_storage.storage_path: checkpoints",
            ),
        ),
        (
            "{type: azure, container: c}",
            (
                "'checkpoint_storage' (mnist.yaml, line 1) has no connection_string.",
                "connection_string, or account_url and its credential.",
                "write one of connection_string and account_url.",
            ),
        ),
        (
            "{type: azure, container: c, connection_string: a, account_url: b}",
            (
                "'checkpoint_storage' (mnist.yaml, line 1) has a connection_string and an account_url.",
                "connection_string, or account_url and its credential.",
                "write one of connection_string and account_url.",
            ),
        ),
        (
            "{type: azure, container: c, connection_string: a, credential: b}",
            (
                (
                    "'checkpoint_storage.credential' (mnist.yaml, line 1) stands next to connection_string, which holds"
                    " one."
                ),
                "connection_string, or account_url and its credential.",
                "delete credential.",
            ),
        ),
        (
            "{type: s3, buckett: b}",
            (
                (
                    "'checkpoint_storage.buckett' (mnist.yaml, line 1) is not a key of checkpoint_storage."
                    " Did you mean 'bucket'?"
                ),
                (
                    "one of access_key, account_url, bucket, connection_string, container, container_path, credential,"
                    " endpoint_url, host_path, prefix, propagation, save_experiment_best, save_trial_best,"
                    " save_trial_latest, secret_key, storage_path, type, url."
                ),
                "checkpoint_storage.bucket: b",
            ),
        ),
    ],
)
def test_a_wrong_storage_is_refused(written: str, parts: tuple[str, str, str]) -> None:
    assert error_of(f"checkpoint_storage: {written}\n") == parts
