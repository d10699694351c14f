"""Keys, proofs, credentials and tokens: valid ones are accepted, all others are refused without exposing secrets."""

import hmac
import pickle
from pathlib import Path

import msgspec
import pytest

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import AuthenticationError, ConfigurationError, RevokedError, TokenError, TokenExpiredError
from penstock.security import Credentials, Grant, PrivateKey, PublicKey, Token, TokenSigner, TokenVerifier
from penstock.security.core.brokering import Challenge
from penstock.security.core.keys import decode_text, encode_text
from penstock.security.core.proof import ScryptCost, SecretKeys, SecretVerifier, login_statement, server_statement

KEY = PrivateKey(bytes(range(32)))
NOW_NS = 1_700_000_000 * NS_PER_SECOND
TOKEN = Token("stream", "alice", "s1", (Grant("md.us.>", "receive", 900),), NOW_NS, NOW_NS + 600 * NS_PER_SECOND, 2)
SECRET = b"correct horse battery staple"
COST = ScryptCost()


def test_a_key_can_be_a_file_or_text(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    KEY.write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert PrivateKey.read(path).public == KEY.public
    assert PublicKey.parse(KEY.public.text).is_signature(KEY.sign(b"x"), b"x")
    assert not KEY.public.is_signature(KEY.sign(b"x"), b"y")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        KEY.write(path)  # an existing key is never overwritten
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        PrivateKey.read(path)
    with pytest.raises(TypeError):
        pickle.dumps(KEY)
    assert "hidden" in repr(KEY)


@pytest.mark.parametrize("text", ["", "-----BEGIN", "x" * 5_000])
def test_invalid_keys_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key.pem"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="not a private key"):
        PrivateKey.read(path)


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    path = tmp_path / "key.pem"
    pem = X25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(pem)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="not an Ed25519 key"):
        PrivateKey.read(path)


def test_text_has_a_single_encoding() -> None:
    assert decode_text(encode_text(b"\xff\xfe")) == b"\xff\xfe"
    for text in ["__", "_/4", "//4=", "a", "_-4\n", "ä", "__4="]:
        with pytest.raises(ConfigurationError):
            decode_text(text[:-1] + "5" if text == "__" else text)


NONCE = b"n" * 32
BINDING = b"b" * 32


@pytest.mark.spec("ADM-1")
def test_a_secret_is_proved_without_being_sent_or_stored() -> None:
    verifier = SecretVerifier.parse(SecretVerifier.make(SECRET, b"s" * 16, COST).text)
    challenge = Challenge(challenge=b"c" * 32, salt=b"s" * 16, cost=COST, expires_ns=0)
    statement = login_statement("alice", b"c" * 32, NONCE)
    proof = Credentials("alice", secret=SECRET).answer(challenge, NONCE).proof
    assert verifier.is_proof(proof, statement)
    assert SECRET not in verifier.text.encode()
    for other in (
        login_statement("alice", b"d" * 32, NONCE),
        login_statement("bob", b"c" * 32, NONCE),
        login_statement("alice", b"c" * 32, b"m" * 32),
        login_statement("alice", b"c" * 32, NONCE, BINDING),
    ):
        assert not verifier.is_proof(proof, other)
    assert not verifier.is_proof(Credentials("alice", secret=SECRET + b"!").answer(challenge, NONCE).proof, statement)
    for number in range(len(proof)):
        changed = proof[:number] + bytes([proof[number] ^ 1]) + proof[number + 1 :]
        assert not verifier.is_proof(changed, statement)
    assert not verifier.is_proof(b"", statement)
    assert not verifier.is_proof(proof + b"0", statement)


@pytest.mark.spec("ADM-1")
def test_neither_the_policy_nor_a_recorded_login_is_enough_to_log_in() -> None:
    """With SCRAM, the server's record and one proof would give the client's key."""
    verifier = SecretVerifier.make(SECRET, b"s" * 16, COST)
    challenge = Challenge(challenge=b"c" * 32, salt=b"s" * 16, cost=COST, expires_ns=0)
    seen = login_statement("alice", b"c" * 32, NONCE)
    proof = Credentials("alice", secret=SECRET).answer(challenge, NONCE).proof
    wanted = login_statement("alice", b"d" * 32, NONCE)
    held = (verifier.public, verifier.server, verifier.server_proof(seen), proof[:32], proof[32:])
    for one in held:
        assert not verifier.is_proof(PrivateKey(one).sign(wanted), wanted)
        for other in (*held, hmac.digest(one, seen, "sha256"), hmac.digest(one, wanted, "sha256")):
            mixed = bytes(left ^ right for left, right in zip(one, other, strict=True))
            assert not verifier.is_proof(PrivateKey(mixed).sign(wanted), wanted)


@pytest.mark.spec("ADM-1")
def test_a_server_proves_itself_by_the_secret_or_by_its_key() -> None:
    challenge = Challenge(challenge=b"c" * 32, salt=b"s" * 16, cost=COST, expires_ns=0)
    statement = login_statement("alice", b"c" * 32, NONCE)
    good = SecretVerifier.make(SECRET, b"s" * 16, COST).server_proof(statement)
    by_secret = Credentials("alice", secret=SECRET).answer(challenge, NONCE)
    by_secret.check_server(good)
    other = SecretVerifier.make(SECRET + b"!", b"s" * 16, COST)
    recorded = SecretVerifier.make(SECRET, b"s" * 16, COST).server_proof(login_statement("alice", b"d" * 32, NONCE))
    for bad in (b"", by_secret.proof, good[:-1], other.server_proof(statement), recorded):
        with pytest.raises(AuthenticationError, match="does not prove"):
            by_secret.check_server(bad)
    server = PrivateKey(b"k" * 32)
    by_key = Credentials("alice", key=KEY, server_key=server.public).answer(challenge, NONCE)
    by_key.check_server(server.sign(server_statement(statement)))
    for bad in (b"", server.sign(statement), KEY.sign(server_statement(statement))):
        with pytest.raises(AuthenticationError, match="does not prove"):
            by_key.check_server(bad)
    Credentials("alice", key=KEY).answer(challenge, NONCE).check_server(b"")  # it has no key of the server


def test_a_secret_record_of_an_older_version_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="older version"):
        SecretVerifier.parse("scrypt:16384:8:1:AAECAwQFBgcICQoLDA0ODw:dtQED5P5ZWJ_JgfnwqLMix37wXbcOXSKtVmAh9MwP_o")


def test_a_hostile_cost_is_refused() -> None:
    document = msgspec.json.encode(
        {"challenge": "A" * 43 + "=", "salt": "A" * 22 + "==", "cost": {"n": 2**30}, "expires_ns": 0}
    )
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(document, type=Challenge)
    for cost, what in (
        (ScryptCost(n=16), "n \\* r is 128, the minimum is 131072"),
        (ScryptCost(n=8_192), "the minimum is 131072"),
        (ScryptCost(n=32_768, r=1), "the minimum is 131072"),
        (ScryptCost(n=131_072, r=1), "n must be less than 65536"),
        (ScryptCost(n=16_385), "power of two"),
        (ScryptCost(n=0), "power of two"),
        (ScryptCost(n=262_144), "the maximum is n=131072"),
        (ScryptCost(r=9), "the maximum is n=131072, r=8"),
        (ScryptCost(p=5), "the maximum is n=131072, r=8, p=4"),
    ):
        challenge = Challenge(challenge=b"c" * 32, salt=b"s" * 16, cost=cost, expires_ns=0)
        with pytest.raises(AuthenticationError, match=what):
            Credentials("alice", secret=SECRET).answer(challenge, NONCE)
        with pytest.raises(ConfigurationError, match=what):
            SecretVerifier.make(SECRET, b"s" * 16, cost)


def test_the_lowest_cost_is_accepted_and_its_keys_are_derived_once_per_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    least = ScryptCost(n=65_536, r=2)
    asked = [(b"s" * 16, COST), (b"t" * 16, COST), (b"t" * 16, least)]
    verifiers = [SecretVerifier.make(SECRET, salt, cost) for salt, cost in asked]
    derived, derive = [], SecretKeys.derive

    def counted(secret: bytes, salt: bytes, cost: ScryptCost) -> SecretKeys:
        derived.append((salt, cost))
        return derive(secret, salt, cost)

    monkeypatch.setattr(SecretKeys, "derive", counted)
    alice = Credentials("alice", secret=SECRET)
    for (salt, cost), verifier in zip(asked, verifiers, strict=True):
        for data in (b"c" * 32, b"d" * 32):
            challenge = Challenge(challenge=data, salt=salt, cost=cost, expires_ns=0)
            assert verifier.is_proof(alice.answer(challenge, NONCE).proof, login_statement("alice", data, NONCE))
    assert derived == asked


def test_credentials_from_files(tmp_path: Path) -> None:
    KEY.write(tmp_path / "alice.pem")
    by_key = written(tmp_path / "a.toml", 'client = "alice"\nkey_file = "alice.pem"\nca_file = "ca.pem"\n')
    credentials = Credentials.load(by_key)
    challenge = Challenge(challenge=b"c" * 32, salt=bytes(16), cost=COST, expires_ns=0)
    proof = credentials.answer(challenge, NONCE, BINDING).proof
    assert KEY.public.is_signature(proof, login_statement("alice", b"c" * 32, NONCE, BINDING))
    assert credentials.ca_file == tmp_path / "ca.pem"
    written(tmp_path / "secret", f"{SECRET.decode()}\n")
    one = Credentials.load(written(tmp_path / "b.toml", 'client = "alice"\nsecret_file = "secret"\n'))
    two = Credentials.load(written(tmp_path / "c.toml", f'client = "alice"\nsecret = "{SECRET.decode()}"\n'))
    assert one.answer(challenge, NONCE).proof == two.answer(challenge, NONCE).proof
    assert SECRET.decode() not in repr(two)
    with pytest.raises(TypeError):
        pickle.dumps(two)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('client = "a"\n', "defines 0 of"),
        ('client = "a"\nsecret = "0123456789abcdef"\nkey_file = "x"\n', "defines 2 of"),
        ('client = "a"\nsecret = "short"\n', "the secret has 5 bytes"),
        ('client = "a"\npassword = "0123456789abcdef"\n', "password"),
        ('secret = "0123456789abcdef"\n', "client"),
    ],
)
def test_credentials_with_mistakes_are_refused(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what) as caught:
        Credentials.load(written(tmp_path / "a.toml", text))
    assert "0123456789abcdef" not in str(caught.value)


def test_credentials_that_others_can_read_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.toml", 'client = "a"\nsecret = "0123456789abcdef"\n')
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        Credentials.load(path)


def verifier(**options: object) -> TokenVerifier:
    return TokenVerifier([KEY.public], **options)  # type: ignore[arg-type]


def test_a_token_is_decoded_unchanged() -> None:
    text = TokenSigner(KEY).sign(TOKEN)
    assert text.startswith(f"ps1.{KEY.public.id}.")
    assert verifier().verify(text, NOW_NS) == TOKEN


@pytest.mark.spec("ADM-1")
def test_every_change_of_a_token_is_detected() -> None:
    text = TokenSigner(KEY).sign(TOKEN)
    for position, character in enumerate(text):
        for other in ("A", "B", "."):
            changed = text[:position] + other + text[position + 1 :]
            if other != character:
                with pytest.raises(TokenError):
                    verifier().verify(changed, NOW_NS)
    for end in range(len(text)):
        with pytest.raises(TokenError):
            verifier().verify(text[:end], NOW_NS)
    for garbage in ("ä" * 40, text + ".", "x" * 70_000, text + "\n"):
        with pytest.raises(TokenError):
            verifier().verify(garbage, NOW_NS)


@pytest.mark.spec("ADM-1")
def test_time_purpose_and_signer_are_checked() -> None:
    text = TokenSigner(KEY).sign(TOKEN)
    with pytest.raises(TokenExpiredError, match="0 s ago"):
        verifier().verify(text, TOKEN.expires_ns)
    assert verifier().verify(text, NOW_NS - 29 * NS_PER_SECOND)  # clocks differ slightly
    with pytest.raises(TokenError, match="clocks"):
        verifier().verify(text, NOW_NS - 31 * NS_PER_SECOND)
    with pytest.raises(TokenError, match="stream token"):
        verifier(purpose="session").verify(text, NOW_NS)
    with pytest.raises(TokenError, match="an unknown key"):
        TokenVerifier([PrivateKey(bytes(32)).public]).verify(text, NOW_NS)


def test_signed_invalid_payloads_are_refused() -> None:
    """Even with the right key: the payload of another version, for example."""
    for payload in (b"", b"\x90", msgspec.msgpack.encode(["stream"]), msgspec.msgpack.encode({"a": 1})):
        signed = f"ps1.{KEY.public.id}.{encode_text(payload)}"
        text = f"{signed}.{encode_text(KEY.sign(b'penstock token 1' + bytes(1) + signed.encode()))}"
        with pytest.raises(TokenError, match="unknown format"):
            verifier().verify(text, NOW_NS)


@pytest.mark.spec("ADM-5")
def test_a_revoked_token_is_refused_with_the_reason() -> None:
    text = TokenSigner(KEY).sign(TOKEN)
    checker = verifier()
    checker.revoke("s1", "left the firm", TOKEN.expires_ns)
    with pytest.raises(RevokedError, match="left the firm"):
        checker.verify(text, NOW_NS)
    checker.forget_expired(TOKEN.expires_ns)
    assert checker.revoked_count == 1
    checker.forget_expired(TOKEN.expires_ns + 31 * NS_PER_SECOND)
    assert checker.revoked_count == 0


@pytest.mark.spec("ADM-8")
def test_tokens_of_a_replaced_server_are_refused() -> None:
    checker = verifier()
    text = TokenSigner(KEY).sign(TOKEN)
    checker.note_generation(3, NOW_NS)
    assert checker.verify(text, NOW_NS) == TOKEN  # issued before the other server took over
    late = msgspec.structs.replace(TOKEN, issued_ns=NOW_NS + 1)
    with pytest.raises(TokenError, match="the servers are at generation 3"):
        checker.verify(TokenSigner(KEY).sign(late), NOW_NS + 1)
    checker.note_generation(2, NOW_NS + 5)
    assert checker.generation == 3


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path
