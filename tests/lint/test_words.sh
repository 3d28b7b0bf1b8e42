#!/usr/bin/env bash
# Claim: docs, help texts, messages, comments and scripts contain none of the words of words.txt, except where
# words_allowed.txt permits them. In C, C++ and CUDA sources it checks comments and strings.
set -uo pipefail
cd "$(dirname "$0")/../.."

find . \( -name '.*' ! -name . -o -name 'build*' -type d -o -path ./tests/fixtures -o -path ./examples/data \) -prune -o -type f \
  \( -name '*.md' -o -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' -o -name '*.sh' -o -name '*.py' -o -name '*.cmake' \
  -o -name CMakeLists.txt -o -path './configs/*.json' \) ! -path ./tests/lint/test_words.sh -print |
  sed 's|^\./||' | LC_ALL=C sort | perl -e '
    use strict; use warnings;
    my (@words, %allowed, @skipped);
    open(my $list, "<", "tests/lint/words.txt") or die "words.txt: $!\n";
    while (<$list>) {
      next if /^#/ || !/\S/;
      chomp;
      my ($pattern, $proposal) = /^(.*?) => (.+)$/ or die "words.txt:$.: no \" => \"\n";
      push @words, [qr/$pattern/i, $proposal, $pattern];
    }
    open(my $exceptions, "<", "tests/lint/words_allowed.txt") or die "words_allowed.txt: $!\n";
    while (<$exceptions>) {
      next if /^#/ || !/\S/;
      chomp;
      my ($file, $text) = split /\t/, $_, 2;
      if ($text eq "*.c") { push @skipped, qr/^\Q$file\E.*\.c$/; next }
      push @{$allowed{$file}}, [$text, $.];
    }
    # All in one: one \b for all and text in lower case make it several times faster than /i.
    my $any = join "|", map { $_->[2] =~ s/^\\b//r } @words;
    $any = qr/\b(?:$any)/;
    my ($n_files, $n_found) = (0, 0);
    while (my $file = <STDIN>) {
      chomp $file;
      next if grep { $file =~ $_ } @skipped;
      local $/;
      open(my $in, "<", $file) or die "$file: $!\n";
      my $text = <$in> // "";
      $n_files++;
      if ($file =~ /\.(c|h|cc|cu)$/) { # keep comments and strings, and the line ends of the rest
        $text =~ s{(/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*")|([^"/]+|.)}{ defined $1 ? $1 : $2 =~ tr/\n//cdr . " " }gse;
      }
      next unless lc($text) =~ $any;
      for my $exception (@{$allowed{$file} // []}) {
        $exception->[2] = 1 if $text =~ s/\Q$exception->[0]\E//g;
      }
      $text =~ s/`[^`\n]*`//g;
      next unless lc($text) =~ $any;
      my $line = 0;
      for (split /\n/, $text) {
        $line++;
        next unless lc($_) =~ $any;
        for my $word (@words) {
          next unless /$word->[0]/;
          print STDERR "$file:$line: \"$&\": write $word->[1]\n";
          $n_found++;
        }
      }
    }
    for my $file (sort keys %allowed) {
      for (grep { !$_->[2] } @{$allowed{$file}}) {
        print STDERR "tests/lint/words_allowed.txt:$_->[1]: $file does not contain this\n";
        $n_found++;
      }
    }
    if ($n_files < 500) { print STDERR "only $n_files files found\n"; exit 1 }
    print "$n_files files, ", scalar @words, " entries\n" unless $n_found;
    exit($n_found ? 1 : 0);
  '
