"""Renames tensors in the pickles of a checkpoint's folder, as a program that wraps its model would have saved them.
usage: rename_tensors.py TAG_FOLDER PATTERN REPLACEMENT"""
import io, os, re, struct, sys, zipfile

folder, pattern, replacement = sys.argv[1:]
for name in os.listdir(folder):
    path = os.path.join(folder, name)
    if name.endswith("manifest.json"):
        os.remove(path)  # its checksums would tell
    if not name.endswith(".pt"):
        continue
    out = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as new:
        for entry in old.namelist():
            data = old.read(entry)
            if entry.endswith("data.pkl"):
                at, parts = 0, []
                for m in re.finditer(rb"X(.{3}\x00)", data, re.S):  # BINUNICODE, shorter than 16 MiB
                    n = struct.unpack("<I", m[1])[0]
                    text = data[m.end():m.end() + n]
                    if m.start() < at or n > 200 or len(text) < n or not re.fullmatch(rb"[a-z_0-9.]+", text):
                        continue
                    if b"." in text:
                        text = re.sub(pattern.encode(), replacement.encode(), text)
                    parts += [data[at:m.start()], b"X", struct.pack("<I", len(text)), text]
                    at = m.end() + n
                data = b"".join(parts) + data[at:]
            new.writestr(zipfile.ZipInfo(entry), data)
    open(path, "wb").write(out.getvalue())
