#!/usr/bin/env bash
# Claim: what the tools, and the library's functions that print to a stream, print of strings goes through
# base/printable.h: no printf with %s, no fputs, puts, fwrite or fputc of anything but a literal, except
# for the places listed here, each with its reason.
set -uo pipefail
cd "$(dirname "$0")/../.."
find tools engine/plan engine/tune engine/report checkpoint -name '*.c' | LC_ALL=C sort | perl -e '
  use strict; use warnings;
  my %allowed = map { my ($file, $call) = /^(\S+): (.*)$/; ("$file: $call", 0) } grep { /./ } split /\n/, q{
tools/czero/tool.c: fputs(style->clear, out)
tools/czero/terminal.c: fprintf(out, "\n%*s", (int)indent, "")
tools/czero/terminal.c: fprintf(out, "%*s", (int)gap, "")
tools/czero/terminal.c: fwrite(text + i + gap, 1, word, out)
tools/czero/terminal.c: fwrite(text, 1, whole, out)
tools/czero/tool.c: fputs(held_text, stderr)
tools/czero/tool.c: puts(text)
tools/czero/terminal.c: fputs(text, out)
tools/czero/terminal.c: fputs(copy ? to_ascii(copy) : text, out)
tools/czero/cmd/cmd_man.c: fputc(*text, out)
tools/czero/cmd/cmd_man.c: fputc(tolower((unsigned char)summary[0]), out)
tools/czero/cmd/cmd_man.c: fputs(separator, out)
tools/czero/train/curve.c: fputs(HEADER, c->file)
tools/czero/train/metrics.c: fwrite(HEADER, 1, strlen(HEADER), m->csv)
tools/czero/cmd/cmd_config.c: fputs(text, stdout)
tools/czero/cmd/cmd_fsck.c: puts(text)
tools/czero/cmd/init_ask.c: fputs(q->text, stderr)
tools/czero/infer/cmd_generate.c: fwrite(text, 1, nbytes, stdout)
tools/czero/cmd/cmd_init.c: putc(*word, out)
tools/czero/predict/predict_table.c: fwrite(text + at, 1, end - at, out)
tools/czero/predict/predict_table.c: fwrite(t->text, 1, t->nbytes, t->out)
tools/czero/plot/plot_write.c: fwrite(data, 1, nbytes, user)
tools/czero/plot/plot_write.c: fwrite(bytes, 1, nbytes, file)
tools/czero/plot/plot_svg.c: putc(is_move ? \x27M\x27 : \x27l\x27, pen->out)
tools/czero/plot/plot_text.c: putc(cell->mark, c->out)
tools/czero/plot/plot_text.c: putc(is_tick ? \x27+\x27 : \x27-\x27, c->out)
tools/czero/plot/plot_svg.c: fputs(escape, out)
tools/czero/plot/plot_svg.c: fwrite(text, 1, len, out)
checkpoint/inspect/inspect.c: fwrite(text, 1, nbytes, out)
engine/report/class_report.c: fputs(before, t.stream)
};
  # In order: a constant; pieces of terminal_wrap(), of texts that are escaped where they are made; JSON, escaped where it is made; tables and help, likewise; tables of options, which are constants; constants; whole texts or JSON of the
  # library, escaped where they are made (json_write.h); a question of the program; --raw; a name that
  # check_names() looked at; cells that predict_put_cell() escaped; a finished plot; marks of a plot; pieces of put_text(), which escapes; constants.
  %allowed = map { s/\\x27/\x27/gr => 0 } keys %allowed;
  my ($n_files, $n_found) = (0, 0);
  while (my $file = <STDIN>) {
    chomp $file;
    next if $file eq "tools/czero/args.c"; # prints help, made of constants; its complaints are printable_vprint
    local $/;
    open(my $in, "<", $file) or die "$file: $!\n";
    my $text = <$in>;
    $n_files++;
    $text =~ s{/\*.*?\*/}{ $& =~ tr/\n//cdr }gse;
    while ($text =~ /(?<![\w.>])(f?printf|vf?printf|f?puts|fwrite|f?putc|putchar|dprintf)(\((?:[^()"\x27]|"(?:[^"\\]|\\.)*"|\x27(?:[^\x27\\]|\\.)+\x27|(?2))*\))/gs) {
      my ($name, $arguments, $line) = ($1, $2, 1 + (substr($text, 0, $-[0]) =~ tr/\n//));
      (my $call = "$name$arguments") =~ s/\s+/ /g;
      my $harmless = $name =~ /printf/
        ? $name !~ /^v/ && $arguments =~ /"/ && $arguments !~ /"[^"]*%[-+ #0]*(?:\*|\d+)?(?:\.(?:\*|\d+)?)?s/
        : $arguments =~ /^\(\s*(?:"(?:[^"\\]|\\.)*"\s*|\x27(?:[^\x27\\]|\\.)+\x27)/;
      next if $harmless;
      if (exists $allowed{"$file: $call"}) { $allowed{"$file: $call"}++; next }
      print STDERR "$file:$line: $call: use base/printable.h\n";
      $n_found++;
    }
  }
  for (sort keys %allowed) {
    next if $allowed{$_};
    print STDERR "tests/lint/test_printable.sh: allows what is not there: $_\n";
    $n_found++;
  }
  if ($n_files < 60) { print STDERR "only $n_files files found\n"; exit 1 }
  print "$n_files files\n" unless $n_found;
  exit($n_found ? 1 : 0);
'
