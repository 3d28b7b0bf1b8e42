#!/usr/bin/env bash
# Claim: `czero plot` draws metrics, curves and csv_monitor's files as well-formed SVG that holds
# what is in them (lines, points, the best eval, escaped names), many rows in a small file, and
# as text within the width; what cannot be drawn gets a sentence and an exit code.
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
czero=$1/czero
work=$(mktemp -d /tmp/czero-plot-XXXXXX)
trap 'rm -rf "$work"' EXIT
export LC_ALL=C.UTF-8 COLUMNS=80
failed=0
complain() { echo "$*" >&2; failed=1; }

header=step,epoch,split,loss,accuracy,macro_f1,weighted_f1,lr,seconds
mkdir "$work/a" "$work/b"
make_run() { # file, first loss
  awk -v h=$header -v top="$2" 'BEGIN { print h
    for (s = 1; s <= 300; s++) {
      l = top * exp(-s / 80) + 0.2 + 0.1 * ((s * 7919) % 13) / 13
      printf "%d,%.3f,train,%.5f,%.5f,,,%.6g,%.1f\n", s, s / 100, l, 1 - l / 3, 1e-4 * (1 - s / 300), s * 2
      if (s % 50 == 0) printf "%d,%.3f,eval,%.5f,%.5f,%.5f,,,%.1f\n", s, s / 100, l + (s > 200), 1 - l / 3, 1 - l / 2, s * 2
    } }' >"$1"
}
make_run "$work/a/metrics.csv" 2
make_run "$work/b/metrics.csv" 3

# svg FILES… OPTIONS: draws $work/out.svg, which must be XML; prints nothing
svg() {
  "$czero" plot "$@" -o "$work/out.svg" >"$work/out" 2>"$work/err" || complain "$*: $(cat "$work/err")"
  [ ! -s "$work/out" ] || complain "$*: prints besides the file"
  python3 - "$work/out.svg" >"$work/texts" <<'PY' || complain "$*: not well-formed"
import sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
ns = "{http://www.w3.org/2000/svg}"
assert root.tag == ns + "svg", root.tag
width, height = float(root.get("width")), float(root.get("height"))
kinds = {}
for e in root.iter():
    if e.tag == ns + "text":
        print(e.text)
        assert 0 <= float(e.get("x")) <= width and 0 <= float(e.get("y")) <= height, e.text
    if e.tag == ns + "circle":
        kinds["ring" if "ring" in e.get("class") else "point"] = kinds.get("ring" if "ring" in e.get("class") else "point", 0) + 1
        assert 0 <= float(e.get("cx")) <= width and 0 <= float(e.get("cy")) <= height
    if e.tag == ns + "path":
        kinds[e.get("class").split()[-1]] = kinds.get(e.get("class").split()[-1], 0) + 1
print(" ".join(f"{k}={v}" for k, v in sorted(kinds.items())))
PY
}
holds() { grep -qF -- "$1" "$work/texts" || complain "no \"$1\" in: $(tr '\n' '|' <"$work/texts")"; }

# one run: two panels, a raw and a smooth line each, six points of eval each and a legend's, the best
svg "$work/a/metrics.csv" --title 'weibo <6> & "BERT" 微博'
for text in loss accuracy train eval step 'weibo <6> & "BERT" 微博' 'raw=2' 'point=13' 'ring=2'; do holds "$text"; done
holds "$(awk -F, '$3 == "eval" && (best == "" || $4 < best) { best = $4; step = $1 } END { printf "best eval %.4f at step %d", best, step }' "$work/a/metrics.csv")"
holds "$(awk -F, '$3 == "eval" && $5 > best { best = $5; step = $1 } END { printf "best eval %.4f at step %d", best, step }' "$work/a/metrics.csv")"
grep -q 'prefers-color-scheme: dark' "$work/out.svg" || complain "no colours for dark pages"
# without a title it is the run's name: of the folder, or of a file with a name of its own
svg "$work/a/metrics.csv"
grep -qx '<text .* class="title">a</text>' "$work/out.svg" || complain "the folder's name is not the title"
cp "$work/a/metrics.csv" "$work/bert.csv"
svg "$work/bert.csv"
grep -qx '<text .* class="title">bert</text>' "$work/out.svg" || complain "the file's name is not the title"
for none in '--title=' "$work/bert.csv"; do
  svg "$work/a/metrics.csv" "$none"
  grep -q 'class="title"' "$work/out.svg" && complain "$none: a title"
done
svg "$work/a/metrics.csv" --smooth 1
grep -q '^axis=.* raw=' "$work/texts" && complain "--smooth 1 smoothes"
svg "$work/a/metrics.csv" --x seconds --y macro_f1,lr --width 500 --height 300
for text in macro_f1 lr minutes; do holds "$text"; done
grep -qx loss "$work/texts" && complain "--y is not followed"
svg "$work/a/metrics.csv" --y loss,weighted_f1
grep -q "no numbers of weighted_f1 yet" "$work/err" || complain "an empty column is not mentioned"
holds loss

# several runs: named by what tells them apart
svg "$work/a/metrics.csv" "$work/b/metrics.csv"
for text in a b 'raw=4' 'ring=4'; do holds "$text"; done
cp "$work/a/metrics.csv" "$work/it's <one>.csv"
svg "$work/it's <one>.csv" "$work/b/metrics.csv"
holds "it's <one>"

# --curve, csv_monitor (CR LF, a header again after a resume), a run that is being written
printf 'step,loss,lr_next,grad_norm,loss_scale\n1,5,1e-4,1,1\n2,4,1e-4,1,1\n3,3.' >"$work/curve.csv"
svg "$work/curve.csv"
grep -q "ignoring the incomplete last line" "$work/err" || complain "a cut line is not mentioned"
holds 'point=2'
printf 'step,lr\r\n8,0.0\r\n16,1e-4\r\nstep,lr\r\n24,2e-4\r\n' >"$work/Train_Samples_lr.csv"
svg "$work/Train_Samples_lr.csv"
holds lr
holds 'point=3'
printf '%s\n1,0.1,train,2,,,,,1\n2,0.1,train,nan,,,,,1\n3,0.1,train,inf,,,,,1\n4,0.1,train,1,,,,,1\n' $header >"$work/nan.csv"
svg "$work/nan.csv" --log-y
grep -q "2 values of loss are not finite" "$work/err" || complain "gaps are not mentioned: $(cat "$work/err")"

# without loss and accuracy every column with numbers has a panel, and no place has one
printf 'step,epoch,seconds,empty,lr,norm\n1,0.1,3,,1,2\n2,0.2,4,,2,3\n' >"$work/other.csv"
svg "$work/other.csv"
for text in lr norm step; do holds "$text"; done
grep -qxE 'epoch|seconds|empty' "$work/texts" && complain "panels of places, or of nothing: $(tr '\n' '|' <"$work/texts")"

# as many as a figure holds
printf 'step,a1,a2,a3,a4,a5,a6,a7\n1,1,1,1,1,1,1,1\n2,2,2,2,2,2,2,2\n' >"$work/seven.csv"
svg "$work/seven.csv"
holds a6
grep -qx a7 "$work/texts" && complain "seven panels"

# many rows
awk 'BEGIN { print "step,loss"; for (s = 1; s <= 200000; s++) printf "%d,%.4f\n", s, 2 + 6 * exp(-s / 2e4) + ((s * 7919) % 997) / 997 }' >"$work/big.csv"
svg "$work/big.csv" --log-y
[ "$(stat -c %s "$work/out.svg")" -lt 100000 ] || complain "many rows: $(stat -c %s "$work/out.svg") bytes"
holds 200k

# text
"$czero" plot "$work/a/metrics.csv" --width 60 >"$work/out" || complain "text: exit $?"
grep -q "● eval" "$work/out" || complain "no legend"
grep -q "◉" "$work/out" || complain "the best is not marked"
grep -q $'\033' "$work/out" && complain "colours without a terminal"
python3 - "$work/out" <<'PY' || complain "text is not 60 wide, or not braille"
import sys
lines = open(sys.argv[1], encoding="utf-8").read().split("\n")
assert 55 <= max(map(len, lines)) <= 60, max(map(len, lines))
assert any("\u2800" < c <= "\u28ff" for line in lines for c in line)
PY
LC_ALL=C "$czero" plot "$work/a/metrics.csv" "$work/b/metrics.csv" --y loss >"$work/out" || complain "ASCII: exit $?"
LC_ALL=C grep -q '[^ -~]' "$work/out" && complain "not ASCII"
grep -q '^\* a (A: eval)   + b (B: eval)   @ best$' "$work/out" || complain "ASCII: $(head -1 "$work/out")"
"$czero" plot "$work/a/metrics.csv" --text -o "$work/both.svg" >"$work/out" && grep -q "⠒⠒ train" "$work/out" || complain "no text beside the file"
[ -s "$work/both.svg" ] || complain "no file beside the text"

# A plot whose every place is known: each height and width is linear between its ticks, the best is where it is named.
printf 'step,split,loss\n0,train,0\n5,train,5\n5,eval,2.5\n10,train,10\n10,eval,5\n' >"$work/known.csv"
same() { diff - "$work/out" >&2 || complain "$1: another plot"; }
LC_ALL=C "$czero" plot "$work/known.csv" --title "" --width 40 --height 8 >"$work/out" || complain "ASCII: exit $?"
same ASCII <<'PLOT'
* train   o eval   @ best

loss   best eval 2.500 at step 5
10 +                                ***
   |                            ****
   |                        ****
   |                    ****
 5 +               *****              o
   |         ******  @
   |   ******
 0 +***
   ++----------------+----------------+
    0                5               10
                                   step
PLOT
"$czero" plot "$work/known.csv" --title "" --width 40 --height 8 >"$work/out" || complain "UTF-8: exit $?"
same UTF-8 <<'PLOT'
⠒⠒ train   ● eval   ◉ best

loss   best eval 2.500 at step 5
10 ┤                                ⣀⠤⠒
   │                           ⢀⡠⠔⠒⠉
   │                       ⣀⠤⠒⠊⠁
   │                  ⢀⡠⠔⠊⠉
 5 ┤             ⢀⡠⠤⠒⠉⠁               ●
   │        ⢀⡠⠤⠒⠉⠁   ◉
   │   ⢀⡠⠤⠒⠉⠁
 0 ┤⠤⠒⠉⠁
   └┬────────────────┬────────────────┬
    0                5               10
                                   step
PLOT
"$czero" plot "$work/known.csv" --title "" --width 400 --height 300 -o "$work/out.svg" || complain "SVG: exit $?"
sed '1,/^<rect/d' "$work/out.svg" >"$work/out"
same SVG <<'PLOT'
<path class="c0 line" d="M16.0 24.0h20"/>
<text x="42.0" y="28.0">train</text>
<path class="c1 eval" d="M94.5 24.0h20"/>
<circle class="c1" cx="104.5" cy="24.0" r="3"/>
<text x="120.5" y="28.0">eval</text>
<text x="16.0" y="52.0" class="name">loss</text>
<text x="376.0" y="52.0" class="soft best">best eval 2.500 at step 5</text>
<path class="grid" d="M38.8 243.2h337.2"/>
<text x="31.8" y="247.2" class="tick">0</text>
<path class="grid" d="M38.8 158.0h337.2"/>
<text x="31.8" y="162.0" class="tick">5</text>
<path class="grid" d="M38.8 72.8h337.2"/>
<text x="31.8" y="76.8" class="tick">10</text>
<path class="axis" d="M38.8 250.0v4"/>
<text x="38.8" y="267.0" class="xtick">0</text>
<path class="axis" d="M106.2 250.0v4"/>
<text x="106.2" y="267.0" class="xtick">2</text>
<path class="axis" d="M173.7 250.0v4"/>
<text x="173.7" y="267.0" class="xtick">4</text>
<path class="axis" d="M241.1 250.0v4"/>
<text x="241.1" y="267.0" class="xtick">6</text>
<path class="axis" d="M308.6 250.0v4"/>
<text x="308.6" y="267.0" class="xtick">8</text>
<path class="axis" d="M376.0 250.0v4"/>
<text x="376.0" y="267.0" class="xtick">10</text>
<path class="axis" d="M38.8 250.0h337.2"/>
<text x="207.4" y="284.0" class="xname">step</text>
<path class="c0 line" d="M38.8 243.2h0l168.6 -85.2l168.6 -85.2"/>
<circle class="c0" cx="38.8" cy="243.2" r="3"/>
<circle class="c0" cx="207.4" cy="158.0" r="3"/>
<circle class="c0" cx="376.0" cy="72.8" r="3"/>
<path class="c1 eval" d="M207.4 200.6h0l168.6 -42.6"/>
<circle class="c1" cx="207.4" cy="200.6" r="3"/>
<circle class="c1" cx="376.0" cy="158.0" r="3"/>
<circle class="ring c1" cx="207.4" cy="200.6" r="6.5"/>
</svg>
PLOT

expect() { # exit code, part of the sentence, arguments…
  local code=$1 part=$2
  shift 2
  "$czero" plot "$@" >"$work/out" 2>"$work/err"
  local got=$?
  [ $got = "$code" ] || complain "$*: exit $got, not $code"
  grep -q -- "$part" "$work/err" || complain "$*: $(cat "$work/err")"
}
: >"$work/empty.csv"
echo $header >"$work/head.csv"
printf 'step,loss\n1,2\n2,x\n' >"$work/word.csv"
printf 'step,loss\n1,2\n2\n' >"$work/short.csv"
printf '1,2\n3,4\n' >"$work/nohead.csv"
printf 'step,loss\n1,2\0\n' >"$work/zero.csv"
head -c 3000 /dev/urandom >"$work/noise.csv"
expect 4 "is empty" "$work/empty.csv"
expect 2 "contains no numbers to plot yet" "$work/head.csv"
expect 2 "line 3: the value of column loss is not a number" "$work/word.csv"
expect 4 "line 3: 1 cells under 2 columns" "$work/short.csv"
expect 4 "instead of column names" "$work/nohead.csv"
expect 4 "zero byte" "$work/zero.csv"
expect 4 "noise.csv" "$work/noise.csv"
expect 2 "none.csv" "$work/none.csv"
expect 1 "directory" "$work"
expect 2 "has the columns step, epoch" "$work/a/metrics.csv" --y losss
expect 2 "has the columns step, loss" "$work/big.csv" --x epoch
expect 2 "pictures are SVG or PNG" "$work/a/metrics.csv" -o "$work/x.pdf"

# PNG: the same figure through librsvg, or a sentence without it
if "$czero" plot "$work/a/metrics.csv" -o "$work/x.png" --width 480 2>"$work/err"; then
  python3 - "$work/x.png" <<'PY' || complain "not a PNG of 480 pixels"
import struct, sys, zlib
data = open(sys.argv[1], "rb").read()
assert data[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">I", data[16:20])[0] == 480
pixels, at = b"", 8
while at < len(data):
    n, kind = struct.unpack(">I", data[at:at + 4])[0], data[at + 4:at + 8]
    pixels += data[at + 8:at + 8 + n] if kind == b"IDAT" else b""
    at += 12 + n
assert len(set(zlib.decompress(pixels))) > 20, "one colour"
PY
else
  grep -q 'PNG needs librsvg' "$work/err" || complain "neither a PNG nor a reason"
  [ ! -e "$work/x.png" ] || complain "a file without a picture"
fi
expect 1 "/nowhere/x.svg" "$work/a/metrics.csv" -o /nowhere/x.svg
expect 1 "/dev/full" "$work/a/metrics.csv" -o /dev/full
expect 2 "can distinguish at most" "$work"/{a,b,a,b,a,b,a,b,a}/metrics.csv
expect 2 "FILE.csv is missing"

# both ends of what sizes may be
fine() { "$czero" plot "$@" >"$work/out" 2>"$work/err" || complain "$*: exit $?: $(cat "$work/err")"; }
widest() { wc -L <"$work/out"; }
known=$work/known.csv
for side in width height; do
  least=$([ $side = width ] && echo 240 || echo 200)
  letters=$([ $side = width ] && echo 20 || echo 5)
  svg "$known" --$side 20000
  svg "$known" --$side $least
  expect 2 "^czero: --width and --height: at most 20000$" "$known" -o "$work/x.svg" --$side 20001
  expect 2 "^czero: a picture needs --width 240 and --height 200, at least$" "$known" -o "$work/x.svg" --$side $((least - 1))
  fine "$known" --$side $letters
  fine "$known" --$side $letters --text -o "$work/both.svg" # characters are allowed where text is asked for, too
  expect 2 "$side: $((letters - 1)) is less than $letters" "$known" --$side $((letters - 1))
  [ ! -e "$work/x.svg" ] || complain "$side: a refused picture is there"
done
fine "$work"/{a,b,a,b,a,b,a,b}/metrics.csv
for columns in 19 1001 x; do # not taken: 80
  COLUMNS=$columns fine "$known"
  [ "$(widest)" -gt 60 ] && [ "$(widest)" -le 80 ] || complain "$columns columns: $(widest) wide"
done
COLUMNS=20 fine "$known"
[ "$(widest)" -le 40 ] || complain "20 columns: $(widest) wide"
COLUMNS=1000 fine "$known"
[ "$(widest)" -gt 900 ] || complain "1000 columns: $(widest) wide"
"$czero" plot "$work/a/metrics.csv" >/dev/full 2>"$work/err"
[ $? = 1 ] || complain "a full disk is no failure"
"$czero" plot --help >"$work/out" && grep -q -- "--log-y" "$work/out" || complain "no help"
# the panels of a terminal fit its height, with a line for the next command
for lines in 24 30 43; do
  for ys in loss loss,lr; do
    n=$(LINES=$lines "$czero" plot "$work/a/metrics.csv" --y $ys | wc -l)
    [ "$n" -lt $lines ] || complain "$ys takes $n of $lines lines"
  done
done
[ "$(LINES=30 "$czero" plot "$work/a/metrics.csv" --y loss,lr | wc -l)" -gt 24 ] || complain "a tall terminal is not used"
[ "$(LINES=24 "$czero" plot "$work/a/metrics.csv" --y loss --height 30 | wc -l)" -gt 30 ] || complain "--height does not win"

exit $failed
