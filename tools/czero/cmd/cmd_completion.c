/* czero completion: scripts for bash, zsh and fish, made of the tables that also parse the command
 * lines, so that a new option completes without another line. Each script is data of the tables and
 * a small, fixed program of the shell that reads them. */
#include "base/printable.h"
#include "model/families.h"
#include "tools/czero/commands.h"
#include "tools/czero/tool.h"
#include "tools/zero_to_fp32/command.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

struct completion_options {
    const char *shell;
};

static const struct arg_spec specs[] = {
    {"SHELL", ARG_CHOICE, offsetof(struct completion_options, shell), "bash|zsh|fish",
     "bash, zsh or fish", .required = true},
};

const struct arg_command completion_command = {
    .name = "czero completion",
    .summary = "Print the script with which a shell completes czero's command lines.",
    .specs = specs,
    .n_specs = CZ_ARRAY_LEN(specs),
    .epilogue = "The scripts are installed with czero, where shells look for them. For a czero\n"
                "that is not installed, put a line into the shell's start file.",
    .examples = "  eval \"$(czero completion bash)\"   # ~/.bashrc\n"
                "  source <(czero completion zsh)    # ~/.zshrc, after compinit\n"
                "  czero completion fish | source    # ~/.config/fish/config.fish",
};

/* ---- what an option or a word takes --------------------------------------------------------- */

struct values {
    char words[1536]; /* choices and presets, separated by spaces */
    bool files, dirs, commands;
};

static void add_word(struct values *v, const char *word, size_t n)
{
    const size_t used = strlen(v->words);
    snprintf(v->words + used, sizeof v->words - used, "%s%.*s", used > 0 ? " " : "", (int)n, word);
}

static void add_presets(struct values *v)
{
    char names[2048];
    model_preset_names(names, sizeof names);
    for (const char *p = names; *p; p += strspn(p, ", ")) {
        const size_t n = strcspn(p, ",");
        add_word(v, p, n);
        p += n;
    }
}

/* The placeholders of the help say it: DIR and FILE are names, words in small letters choices. */
static struct values values_of(const struct arg_spec *s)
{
    struct values v = {.words = ""};
    for (const char *p = s->values ? s->values : s->name; *p; p += *p == '|') {
        const size_t n = strcspn(p, "|");
        char word[64];
        bool is_choice = n > 0;
        snprintf(word, sizeof word, "%.*s", (int)n, p);
        for (size_t i = 0; i < n; i++)
            is_choice &= islower((unsigned char)p[i]) || isdigit((unsigned char)p[i]) ||
                         strchr("._-", p[i]) != NULL;
        v.dirs |= strstr(word, "DIR") != NULL;
        v.files |= strstr(word, "FILE") != NULL || strstr(word, "PATH") != NULL;
        v.commands |= strcmp(word, "COMMAND") == 0;
        if (strcmp(word, "PRESET") == 0) add_presets(&v);
        if (is_choice) add_word(&v, p, n);
        p += n;
    }
    if (s->kind == ARG_REST) v.files = true; /* a program, and files for it */
    return v;
}

static bool is_word(const struct arg_spec *s)
{
    return s->kind != ARG_HEADING && s->name[0] != '-';
}

static bool is_option(const struct arg_spec *s)
{
    return s->kind != ARG_HEADING && s->name[0] == '-';
}

static bool takes_value(const struct arg_spec *s)
{
    return is_option(s) && s->kind != ARG_FLAG;
}

/* The first sentence or phrase of an explanation; "'" and brackets mean something to shells. */
static const char *brief(const struct arg_spec *s, char buf[160])
{
    size_t n = 0;
    for (const char *p = s->help; *p && n + 1 < 160; p++) {
        if (strncmp(p, " (", 2) == 0 || *p == ';' || strcmp(p, ": ") == 0) break;
        if (!strchr("'\"\\[]:`$", *p)) buf[n++] = *p;
    }
    buf[n] = '\0';
    return buf;
}

/* Every table with its name, through one function for all shells. */
static void for_each_command(void (*visit)(const struct arg_command *c, bool is_program))
{
    for (size_t i = 0; czero_commands[i].name; i++) {
        const struct arg_command *c = czero_commands[i].options;
        visit(c, false);
        for (size_t k = 0; k < c->n_actions; k++) visit(&c->actions[k], false);
    }
    visit(&zero_to_fp32_command, true);
}

static const char *last_word(const char *name)
{
    const char *space = strrchr(name, ' ');
    return space ? space + 1 : name;
}

/* ---- bash ----------------------------------------------------------------------------------- */

static void bash_options(const struct arg_command *c, bool is_program)
{
    (void)is_program;
    printable_print(stdout, "  '%s') words='", c->name);
    for (size_t i = 0; i < c->n_specs; i++)
        if (is_option(&c->specs[i])) printable_print(stdout, "%s ", c->specs[i].name);
    for (size_t i = 0; i < ARGS_N_COMMON; i++)
        printable_print(stdout, i > 0 ? " %s" : "%s", args_common[i].name);
    fputs("' ;;\n", stdout);
}

static void bash_values(const struct arg_spec *s, bool is_first)
{
    const struct values v = values_of(s);
    if (v.words[0]) printable_print(stdout, is_first ? "%s" : " %s", v.words);
    if (v.dirs) fputs(" <dirs>", stdout);
    if (v.files) fputs(" <files>", stdout);
    if (v.commands) fputs(" <commands>", stdout);
}

/* "COMMAND OPTION" for each option that takes a value, "COMMAND +" for other words. */
static void bash_words(const struct arg_command *c, bool is_program)
{
    (void)is_program;
    for (size_t i = 0; i < c->n_specs; i++) {
        if (!takes_value(&c->specs[i])) continue;
        printable_print(stdout, "  '%s %s') words='", c->name, c->specs[i].name);
        bash_values(&c->specs[i], true);
        fputs("' ;;\n", stdout);
    }
    printable_print(stdout, "  '%s +') words='", c->name);
    for (size_t i = 0; i < c->n_actions; i++)
        printable_print(stdout, "%s ", last_word(c->actions[i].name));
    for (size_t i = 0; i < c->n_specs; i++)
        if (is_word(&c->specs[i]) || c->specs[i].kind == ARG_WORDS)
            bash_values(&c->specs[i], false);
    fputs("' ;;\n", stdout);
}

static void bash_names(const struct arg_command *c, bool is_program)
{
    if (!is_program) printable_print(stdout, "'%s' | ", c->name);
}

static void print_bash(void)
{
    fputs("# Completion of czero and zero_to_fp32 for bash, made by `czero completion bash`.\n\n"
          "_czero_options() { # command\n  case $1 in\n"
          "  czero) words='--help --version' ;;\n",
          stdout);
    for_each_command(bash_options);
    fputs("  esac\n}\n\n"
          "_czero_values() { # command, option or \"+\"; fails if it takes none\n"
          "  case \"$1 $2\" in\n  'czero +') words='<commands>' ;;\n",
          stdout);
    for_each_command(bash_words);
    fputs("  *) return 1 ;;\n  esac\n}\n\n_czero_commands='", stdout);
    for (size_t i = 0; czero_commands[i].name; i++)
        printable_print(stdout, i > 0 ? " %s" : "%s", czero_commands[i].name);
    fputs("'\n\n"
          "_czero() {\n"
          "  local current=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[0]##*/} option= words= "
          "word i\n"
          "  local -a found\n"
          "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
          "    word=${COMP_WORDS[i]}\n"
          "    if [[ -n $option && $word == = ]]; then\n"
          "      continue # bash splits --name=value\n"
          "    elif [[ -n $option ]]; then\n"
          "      option=\n"
          "    elif [[ $word == -* ]]; then\n"
          "      _czero_values \"$command\" \"$word\" && option=$word\n"
          "    elif [[ $command == 'czero launch' ]]; then\n"
          "      command=\"czero $word\"\n"
          "    else\n"
          "      case \"$command $word\" in ",
          stdout);
    for_each_command(bash_names);
    fputs("'') command=\"$command $word\" ;; esac\n"
          "    fi\n"
          "  done\n"
          "  [[ $current == = ]] && current=\n"
          "  words=\n"
          "  if [[ -n $option ]]; then\n"
          "    _czero_values \"$command\" \"$option\"\n"
          "  elif [[ $current == -* ]]; then\n"
          "    _czero_options \"$command\"\n"
          "  else\n"
          "    _czero_values \"$command\" + || words='<files>'\n"
          "  fi\n"
          "  COMPREPLY=()\n"
          "  for word in $words; do\n"
          "    case $word in\n"
          "    '<commands>') mapfile -t found < <(compgen -W \"$_czero_commands\" -- \"$current\") "
          ";;\n"
          "    '<files>') mapfile -t found < <(compgen -f -- \"$current\") ;;\n"
          "    '<dirs>') mapfile -t found < <(compgen -d -- \"$current\") ;;\n"
          "    *) mapfile -t found < <(compgen -W \"$word\" -- \"$current\") ;;\n"
          "    esac\n"
          "    [[ $word == '<files>' || $word == '<dirs>' ]] && compopt -o filenames 2>/dev/null\n"
          "    COMPREPLY+=(\"${found[@]}\")\n"
          "  done\n"
          "}\n\n"
          "complete -F _czero czero zero_to_fp32\n",
          stdout);
}

/* ---- zsh ------------------------------------------------------------------------------------ */

/* ":name: action" of _arguments; a leading space in the action keeps zsh from adding words. */
static void zsh_value(const struct arg_spec *s)
{
    const struct values v = values_of(s);
    printable_print(stdout, ":%s: _czero_values %s %s", last_word(s->name) + strspn(s->name, "-"),
                    v.files      ? "files"
                    : v.dirs     ? "dirs"
                    : v.commands ? "commands"
                                 : "none",
                    v.words);
}

static void zsh_command(const struct arg_command *c, bool is_program)
{
    char text[160];
    (void)is_program;
    fputs("\n_", stdout);
    for (const char *p = c->name; *p; p += strcspn(p, " ") + (strchr(p, ' ') != NULL))
        printable_print(stdout, strchr(p, ' ') ? "%.*s_" : "%.*s", (int)strcspn(p, " "), p);
    fputs("() {\n  _arguments -s -S : \\\n", stdout);
    for (size_t i = 0; i < ARGS_N_COMMON; i++)
        printable_print(stdout, "    '(%s %s)'{%s,%s}'[%s]' \\\n", args_common[i].values,
                        args_common[i].name, args_common[i].values, args_common[i].name,
                        brief(&args_common[i], text));
    bool has_words = c->n_actions > 0;
    for (size_t i = 0; i < c->n_specs; i++) {
        const struct arg_spec *s = &c->specs[i];
        if (!is_option(s)) {
            has_words |= s->kind == ARG_WORDS || s->kind == ARG_REST;
            continue;
        }
        const bool repeats = s->kind == ARG_LIST || s->kind == ARG_WORDS;
        const char *joint = !takes_value(s) ? "" : s->name[1] == '-' ? "=" : "+";
        printable_print(stdout, "    '%s%s%s[%s]", repeats ? "*" : "", s->name, joint,
                        brief(s, text));
        if (takes_value(s)) zsh_value(s);
        fputs("' \\\n", stdout);
    }
    if (c->n_actions > 0) {
        fputs("    ':action:(", stdout);
        for (size_t i = 0; i < c->n_actions; i++)
            printable_print(stdout, i > 0 ? " %s" : "%s", last_word(c->actions[i].name));
        fputs(")' '*:: : _czero_dispatch _czero_config'\n}\n", stdout);
        return;
    }
    for (size_t i = 0; i < c->n_specs && c != &launch_command; i++) {
        const struct arg_spec *s = &c->specs[i];
        if (!is_word(s) && s->kind != ARG_WORDS) continue;
        if (s->kind == ARG_WORDS && has_words && !is_word(s)) continue;
        has_words |= s->kind == ARG_WORDS;
        printable_print(stdout, "    '%s", s->kind == ARG_WORDS ? "*" : "");
        zsh_value(s);
        fputs("' \\\n", stdout);
    }
    if (c == &launch_command)
        fputs("    '(-):command:_czero_commands' '*:: : _czero_dispatch _czero'\n}\n", stdout);
    else
        fputs("    && return\n}\n", stdout);
}

static void print_zsh(void)
{
    fputs("#compdef czero zero_to_fp32\n"
          "# Completion of czero and zero_to_fp32 for zsh, made by `czero completion zsh`.\n\n"
          "_czero_values() { # files, dirs, commands or none; words\n"
          "  local kind=$1\n"
          "  shift\n"
          "  (( $# )) && compadd -- \"$@\"\n"
          "  case $kind in\n"
          "  files) _files ;;\n"
          "  dirs) _files -/ ;;\n"
          "  commands) _czero_commands ;;\n"
          "  esac\n"
          "}\n\n"
          "_czero_dispatch() { # first part of a function's name; the rest is the first word\n"
          "  local function=$1_$words[1]\n"
          "  if (( $+functions[$function] )); then\n"
          "    $function\n"
          "  else\n"
          "    _files\n"
          "  fi\n"
          "}\n\n"
          "_czero_commands() {\n"
          "  local -a commands\n"
          "  commands=(\n",
          stdout);
    for (size_t i = 0; czero_commands[i].name; i++)
        printable_print(stdout, "    \"%s:%s\"\n", czero_commands[i].name,
                        czero_commands[i].summary);
    fputs("  )\n  _describe command commands\n}\n", stdout);
    for_each_command(zsh_command);
    fputs("\n_czero() {\n"
          "  if [[ $service == zero_to_fp32 ]]; then\n"
          "    _zero_to_fp32\n"
          "    return\n"
          "  fi\n"
          "  _arguments -C '(-)--help[show the help]' '(-)--version[print the version]' \\\n"
          "    '(-):command:_czero_commands' '*:: : _czero_dispatch _czero'\n"
          "}\n\n"
          "if [[ $funcstack[1] == _czero ]]; then\n"
          "  _czero \"$@\"\n"
          "else\n"
          "  compdef _czero czero zero_to_fp32\n"
          "fi\n",
          stdout);
}

/* ---- fish ----------------------------------------------------------------------------------- */

/* "complete -c czero -n '…'": the words of the command have been typed. */
static void fish_condition(const struct arg_command *c, bool is_program)
{
    printable_print(stdout, "complete -c %s", is_program ? c->name : "czero");
    if (is_program) return;
    fputs(" -n '", stdout);
    const char *word = strchr(c->name, ' ');
    for (bool first = true; word; first = false) {
        word++;
        printable_print(stdout, "%s__fish_seen_subcommand_from %.*s", first ? "" : "; and ",
                        (int)strcspn(word, " "), word);
        word = strchr(word, ' ');
    }
    fputs("'", stdout);
}

static void fish_command(const struct arg_command *c, bool is_program)
{
    char text[160];
    for (size_t i = 0; i < c->n_specs; i++) {
        const struct arg_spec *s = &c->specs[i];
        if (!is_option(s)) continue;
        const struct values v = values_of(s);
        fish_condition(c, is_program);
        printable_print(stdout, s->name[1] == '-' ? " -l %s" : " -s %s",
                        s->name + strspn(s->name, "-"));
        if (takes_value(s)) printable_print(stdout, "%s", v.files ? " -r -F" : " -x");
        if (takes_value(s) && (v.words[0] || v.dirs))
            printable_print(stdout, " -a '%s%s'", v.words,
                            v.dirs ? " (__fish_complete_directories)" : "");
        printable_print(stdout, " -d '%s'\n", brief(s, text));
    }
    for (size_t i = 0; i < ARGS_N_COMMON; i++) {
        fish_condition(c, is_program);
        printable_print(stdout, " -s %s -l %s -d '%s'\n", args_common[i].values + 1,
                        args_common[i].name + 2, brief(&args_common[i], text));
    }
    for (size_t i = 0; i < c->n_specs; i++) {
        const struct values v = values_of(&c->specs[i]);
        if (!is_word(&c->specs[i]) || (!v.words[0] && !v.commands) || c == &launch_command)
            continue;
        fish_condition(c, is_program);
        printable_print(stdout, " -f -a '%s'\n", v.commands ? "$__czero_commands" : v.words);
    }
    for (size_t i = 0; i < c->n_actions; i++) {
        printable_print(stdout,
                        "complete -c czero -n '__fish_seen_subcommand_from %s; and not "
                        "__fish_seen_subcommand_from",
                        last_word(c->name));
        for (size_t k = 0; k < c->n_actions; k++)
            printable_print(stdout, " %s", last_word(c->actions[k].name));
        printable_print(stdout, "' -f -a %s -d '%s'\n", last_word(c->actions[i].name),
                        c->actions[i].summary);
    }
}

static void print_fish(void)
{
    fputs("# Completion of czero and zero_to_fp32 for fish, made by `czero completion fish`.\n\n"
          "set -g __czero_commands",
          stdout);
    for (size_t i = 0; czero_commands[i].name; i++)
        printable_print(stdout, " %s", czero_commands[i].name);
    fputs("\n\n"
          "function __czero_wants_command # launch takes another command\n"
          "  __fish_use_subcommand; and return 0\n"
          "  __fish_seen_subcommand_from launch; or return 1\n"
          "  not __fish_seen_subcommand_from",
          stdout);
    for (size_t i = 0; czero_commands[i].name; i++)
        if (czero_commands[i].options != &launch_command)
            printable_print(stdout, " %s", czero_commands[i].name);
    fputs("\nend\n\n"
          "complete -c czero -n __fish_use_subcommand -l help -d 'show the help'\n"
          "complete -c czero -n __fish_use_subcommand -l version -d 'print the version'\n",
          stdout);
    for (size_t i = 0; czero_commands[i].name; i++)
        printable_print(stdout, "complete -c czero -n __czero_wants_command -f -a %s -d \"%s\"\n",
                        czero_commands[i].name, czero_commands[i].summary);
    for_each_command(fish_command);
}

int cmd_completion(int argc, char **argv)
{
    struct completion_options o = {.shell = NULL};
    enum args_result parsed = args_parse(&completion_command, argc, argv, &o);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    if (strcmp(o.shell, "bash") == 0)
        print_bash();
    else if (strcmp(o.shell, "zsh") == 0)
        print_zsh();
    else
        print_fish();
    return EXIT_OK;
}
