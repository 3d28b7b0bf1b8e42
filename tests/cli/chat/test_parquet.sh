#!/usr/bin/env bash
# Claim: chats and documents in Parquet files train as the same rows in JSON lines do, alone and in a folder, where the plug-in is built (it is found beside the
# program); without it, and for damaged files, a sentence says what to do.
. "$(dirname "$0")/../../support/command.sh"

# pyarrow wrote them: 24 chats in three row groups, zstd; two documents
unpack='import lzma, sys; sys.stdout.buffer.write(lzma.decompress(sys.stdin.buffer.read()))' # not every system has xz
base64 -d <<'FILE' | python3 -c "$unpack" >chat.parquet
/Td6WFoAAATm1rRGAgAhARwAAAAQz1jM4AkGAy5dACgQRohMkmpzd6FjVJwA+6xH/qbfOoYh98Usap5ts/MPNPjI7qeG3eGGGRAAjhZxxG0ZnertzMVY8iVSsQUi8149F7
vzUXa+cY6taZcpRClCtPbEN/L37pYKkqBQxivG6w/fz7M3UZnLzURZIEkgNvNoHyJ59xYIXQaPYbG0cHMwvgBEVoj2FEmUY9oo64nRiTYH6fQmQL8GK4IRHp439rhl96Sn
7GRgdHKjgaWbjCK2G1561+6H6+GhBAz6ypMa9Ny8S6XpOjfhd14+DNd6YW7X6d5lvBJKXxNBnve+H3t/S86iFedP2VKTmI5Brzwaz7eJlIFkSmsZFtDYGzUu4IYKBxQc1h
1W7Bh4Yn1pwDdaVacMZzHh+/l3QP5LlEqbvrBsnPdxgd4lgzgc3QNZ8jEItRof7jRwfl6Cs1AFc7hGf2kLjERo+s3njCERvSgB7CWBc3H7G5P3SNWEvwxhfzqI/BcL3eYq
kuB4lv8+HKTemPndFqJnugXlBT/NnFYMclUZQqA7IaTPONPZgn7I6E4qdKwzazdq78EbIapgtHgmpDZFSPcW7G1KDzDiIkb9CKXQDv/8VoUImihTg8MlvLyrfV5ElA1bWj
CGXf6Imo7i0Mh5HTWZPhGmDYt1YCFc3cQgMyhSTNVYPVx+j04ru/ew5HDmaaEIiY1Q4wvIKdfoTGDkVAYQYO09dk3yrFgLTqoyTYCbjQD/MWFZhTLW8dwoKJ6M8srXlKmA
PhwnDh8gT3bFJF3fwLoz9lxE8N1DN8HGDPxrdOIBCYimiAH/HbeCZq1uRdZPlUxpAJ8qOhNw1t8XerPslc2Usmn7mC6DsmpOfRJDfOW7AMGh1DOptggrvWiBSMuUv7+tAK
zQaEvQTUst8bNhxOUAh26QfhfDleYwTB3wB2OVpP23wdDiBEagGP1pZ7TX35Akvdumrv2IGRT3aD3YTvFDjd10B6700dnXpQDoH1a3XPARep1wPnKuw3F/snV+71xvsEQD
tM4qUmW1JtWg9cZJDrju5wgpe14Z7vTIIeCwG7C8tbnbcOXwMVVeOA6kc7LEO8UN6bpGTLtamTNZOVTirnDsOEsAAAC+4zfS6AhNnQABygaHEgAAM+VKk7HEZ/sCAAAAAA
RZWg==
FILE
base64 -d <<'FILE' >lm.parquet
UEFSMRUEFS4VQEwVBBUAEgAAKLUv/SAXuQAADAAAAG9uZSBkb2N1bWVudAMAAAB0d28VABUSFSQsFQQVEBUGFQYcAAAAKLUv/SAJSQAAAgAAAAQBAQMCFQQZLDUAGAZzY2
hlbWEVAgAVDCUCGAR0ZXh0JQBMHAAAABYEGRwZHCYAHBUMGTUABhAZGAR0ZXh0FQwWBBaCARamASZkJggpLBUEFQAVAgAVABUQFQIAPBYeGQYZJgAEAAAAFoIBFgQmCBam
AQAoIHBhcnF1ZXQtY3BwLWFycm93IHZlcnNpb24gMjYuMC4xGRwcAAAAlgAAAFBBUjE=
FILE
python3 - <<'PY'
import json
pairs = [("red", "blue sky"), ("a cat", "one two"), ("yes", "no \u00e9"), ("why?", "line\nfeed")]
with open("chat.jsonl", "w") as f:
    for q, a in pairs * 6:
        f.write(json.dumps({"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}) + "\n")
with open("lm.jsonl", "w") as f:
    f.write('{"text": "one document"}\n{"text": "two"}\n')
json.dump({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}, open("c.json", "w"))
PY
printf '%s' "{% for m in messages %}<{{ m.role }}>{{ m.content }}.{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}" >t.jinja
sft=(train --config c.json --model gpt2-tiny --tokenizer bytes --task sft --chat-template t.jinja --seq-len 64 --steps 3 --quiet)

CZERO_PARQUET_PLUGIN=/nonexistent/plugin.so refused 2 "chat.parquet: is a Parquet file, which this build of czero cannot read (/nonexistent/plugin.so" \
  "${sft[@]}" --data chat.parquet
grep -qF "write its rows as JSON lines" err || fail "nothing says what to do instead"
head -c 700 chat.parquet >cut.parquet
refused 2 "cut.parquet: is a Parquet file without its end" "${sft[@]}" --data cut.parquet

[ -e "$build/libczero_parquet.so" ] || { echo "skipped the rest: built without Arrow's C++ libraries"; exit 77; }
for data in chat.jsonl chat.parquet; do
  "$czero" "${sft[@]}" --data $data --curve $data.csv >out 2>err || fail "$data"
done
cmp chat.jsonl.csv chat.parquet.csv || fail "Parquet trains otherwise"
mkdir folder && cp chat.parquet folder/part-0.parquet
"$czero" "${sft[@]}" --data folder --curve folder.csv >out 2>err || fail "a folder"
cmp chat.jsonl.csv folder.csv || fail "a folder trains otherwise"
for data in lm.jsonl lm.parquet; do
  "$czero" train --config c.json --model gpt2-tiny --tokenizer bytes --data $data --seq-len 4 --steps 2 --quiet --curve $data.csv >out 2>err || fail "$data"
done
cmp lm.jsonl.csv lm.parquet.csv || fail "documents train otherwise"
python3 - <<'PY'
data = bytearray(open("chat.parquet", "rb").read())
data[60:400] = bytes(340)
open("bad.parquet", "wb").write(data)
PY
refused 4 "bad.parquet: the Parquet data are damaged" "${sft[@]}" --data bad.parquet
