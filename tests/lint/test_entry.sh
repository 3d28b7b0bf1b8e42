#!/usr/bin/env bash
# Claim: every exported function that formats, parses or computes begins with API_ENTRY (base/host/entry.h), so that the
# program's locale and rounding do not reach it. Exempt are functions that call nothing, those that only pass on to
# another exported one, and the names below, which read members, compare or free.
set -uo pipefail
cd "$(dirname "$0")/../.."
git ls-files -z 'api/*.c' '*/*.c' ':!tests' ':!tools' ':!bench' ':!examples' | xargs -0 perl -0777 -e '
  open my $list, "<", "api/exports.txt" or die; my %exported = map { $_ => 1 } split /\s+/, join "", <$list>;
  my %exempt = map { $_ => 1 } qw(cz_clear_error cz_data_is_done cz_data_n_batches cz_dtype_name cz_dtype_size cz_fsck_report_free
    cz_free cz_infer_can_decode cz_infer_gradient cz_load_result_free cz_log_set_level cz_log_set_sink cz_model_n_params
    cz_ops_on_host cz_plan_destroy cz_plan_fits cz_rng_uniform cz_set_strict cz_text_loader_is_done cz_tune_destroy
    cz_tune_missing cz_tune_n_offers cz_tune_offer_fits cz_tune_offer_tokens_per_s engine_get_swap_traffic
    engine_remove_swap_files engine_world_interrupt engine_world_interrupt_over engine_world_rank
    engine_world_size engine_world_started_as cz_version);
  my (%seen, $bad);
  for my $file (@ARGV) {
    open my $in, "<", $file or next; my $text = do { local $/; <$in> };
    while ($text =~ /^(?!static)[A-Za-z][^;{}#\/]*?\b((?:cz|engine)_\w+)\([^;{}]*?\)\s*\n\{\n(.*?)^\}/msg) {
      my ($name, $body) = ($1, $2);
      next unless $exported{$name}; $seen{$name} = 1;
      next if $exempt{$name} or $body =~ /^    (API_ENTRY|ENGINE_ENTRY\(\w+\));\n/;
      my @calls = grep { !/^(if|for|while|switch|sizeof|return|NEED|NEED_OR)$/ and !$exported{$_} } $body =~ /\b(\w+)\(/g;
      next unless @calls;
      print STDERR "$file: $name does not begin with API_ENTRY\n"; $bad = 1;
    }
  }
  for (sort keys %exported) { next if $seen{$_}; print STDERR "$_: its definition was not found\n"; $bad = 1; }
  for (sort keys %exempt) { next if $exported{$_}; print STDERR "$_ is exempt, but not exported\n"; $bad = 1; }
  exit $bad ? 1 : 0;'
