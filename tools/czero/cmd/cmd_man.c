/* czero man: the manual pages of czero, its commands and zero_to_fp32, made of the tables that also
 * parse the command lines. The build writes them all with --output; the markup is that of man(7).
 */
#include "formats/file_io.h"
#include "formats/output.h"
#include "tools/czero/commands.h"
#include "tools/czero/terminal.h"
#include "tools/czero/tool.h"
#include "tools/zero_to_fp32/command.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct man_options {
    const char *command, *output;
};

#define FIELD(member) offsetof(struct man_options, member)

static const struct arg_spec specs[] = {
    {"COMMAND", ARG_STRING, FIELD(command), NULL,
     "a command of czero, or zero_to_fp32 (default: czero itself)"},
    {"--output", ARG_STRING, FIELD(output), "DIR", "write all pages to files in this folder"},
};

const struct arg_command man_command = {
    .name = "czero man",
    .summary = "Print a manual page in the markup of man(7).",
    .specs = specs,
    .n_specs = CZ_ARRAY_LEN(specs),
    .epilogue = "The pages are installed with czero: `man czero-train` shows what\n"
                "`czero man train` prints.",
    .examples = "  czero man train | man -l -",
};

/* ---- markup --------------------------------------------------------------------------------- */

/* Text of a line that does not begin with a dot or an apostrophe of its own: backslashes and
 * hyphens are escaped, so that options can be copied from the page. */
static void put(FILE *out, const char *text)
{
    for (; *text; text++)
        if (*text == '\\')
            fputs("\\e", out);
        else if (*text == '-')
            fputs("\\-", out);
        else
            fputc(*text, out);
}

/* Lines of a text; an empty one begins a paragraph. Filled text loses its indentation. */
static void put_text(FILE *out, const char *text, bool is_filled)
{
    for (bool at_start = true; *text; text++) {
        const bool ends_paragraph = strncmp(text, "\n\n", 2) == 0;
        if (ends_paragraph) fputs("\n.PP", out);
        text += ends_paragraph;
        if (at_start && *text == ' ' && is_filled) continue;
        if (at_start && (*text == '.' || *text == '\'')) fputs("\\&", out);
        at_start = *text == '\n';
        put(out, (const char[]){*text, '\0'});
    }
    fputc('\n', out);
}

static void put_paragraphs(FILE *out, const char *text)
{
    put_text(out, text, true);
}

static void put_lines(FILE *out, const char *text)
{
    fputs(".nf\n", out);
    put_text(out, text, false);
    fputs(".fi\n", out);
}

static void put_option(FILE *out, const struct arg_spec *s)
{
    char help[768];
    fputs(".TP\n\\fB", out);
    if (s->name[0] == '-') {
        put(out, s->name);
        fputs("\\fR", out);
        if (s->values) fputs(" \\fI", out);
        if (s->values) put(out, s->values);
    } else {
        fputs("\\fI", out);
        put(out, s->name);
    }
    put(out, args_more(s));
    fputs("\\fR\n", out);
    put_paragraphs(out, args_help_of(s, help, sizeof help));
}

static void put_options(FILE *out, const struct arg_command *c)
{
    for (size_t i = 0; i < c->n_specs; i++) {
        if (c->specs[i].kind != ARG_HEADING) {
            put_option(out, &c->specs[i]);
            continue;
        }
        fputs(".SS ", out);
        put(out, c->specs[i].help);
        fputc('\n', out);
    }
}

static void put_common_options(FILE *out)
{
    for (size_t i = 0; i < ARGS_N_COMMON; i++) {
        fputs(".TP\n\\fB", out);
        put(out, args_common[i].values);
        fputs("\\fR, \\fB", out);
        put(out, args_common[i].name);
        fputs("\\fR\n", out);
        put_paragraphs(out, args_common[i].help);
    }
}

/* "czero train" → "czero-train" */
static const char *page_name(const char *command, char buf[64])
{
    snprintf(buf, 64, "%s", command);
    for (char *p = buf; *p; p++)
        if (*p == ' ') *p = '-';
    return buf;
}

static void put_head(FILE *out, const char *command, const char *summary)
{
    char name[64], title[64];
    page_name(command, name);
    for (size_t i = 0; i < sizeof title; i++) title[i] = (char)toupper((unsigned char)name[i]);
    fputs(".TH ", out);
    put(out, title);
    fputs(" 1 \"" CZERO_DATE "\" \"czero " CZERO_VERSION "\" \"User Commands\"\n.SH NAME\n", out);
    put(out, name);
    fputs(" \\- ", out);
    /* a sentence of the table becomes a phrase */
    fputc(tolower((unsigned char)summary[0]), out);
    char rest[160];
    snprintf(rest, sizeof rest, "%s", summary + 1);
    if (*rest && rest[strlen(rest) - 1] == '.') rest[strlen(rest) - 1] = '\0';
    put(out, rest);
    fputc('\n', out);
}

static void put_usage(FILE *out, const struct arg_command *c)
{
    char usage[256];
    fputs("\\fB", out);
    put(out, c->name);
    fputs("\\fR", out);
    args_usage(c, usage, sizeof usage);
    put(out, usage);
    fputc('\n', out);
}

/* Near the top: a reader wants a command first, and its options then. */
static void put_examples(FILE *out, const char *examples)
{
    fputs(".SH EXAMPLES\n", out);
    put_lines(out, examples);
}

/* What every page ends with. */
static void put_tail(FILE *out, const char *exits, const char *self)
{
    char name[64];
    fputs(".SH EXIT STATUS\n", out);
    put_paragraphs(out, exits ? exits : CZERO_EXITS);
    fputs(".SH ENVIRONMENT\n", out);
    for (size_t i = 0; czero_environment[i].name; i++) {
        fputs(".TP\n\\fB", out);
        put(out, czero_environment[i].name);
        fputs("\\fR\n", out);
        put_paragraphs(out, czero_environment[i].help);
    }
    fputs(".SH SEE ALSO\n", out);
    const char *separator = "";
    if (strcmp(self, "czero") != 0) {
        fputs(".BR czero (1)", out);
        separator = " ,\n";
    }
    for (size_t i = 0; czero_commands[i].name; i++) {
        page_name(czero_commands[i].options->name, name);
        if (strcmp(czero_commands[i].options->name, self) == 0) continue;
        fputs(separator, out);
        fputs(".BR ", out);
        put(out, name);
        fputs(" (1)", out);
        separator = " ,\n";
    }
    if (strcmp(self, "zero_to_fp32") != 0) fputs(" ,\n.BR zero_to_fp32 (1)", out);
    fputc('\n', out);
}

static void put_command_page(FILE *out, const struct arg_command *c)
{
    put_head(out, c->name, c->summary);
    fputs(".SH SYNOPSIS\n", out);
    for (size_t i = 0; i < c->n_actions; i++) {
        if (i > 0) fputs(".br\n", out);
        put_usage(out, &c->actions[i]);
    }
    if (c->n_actions == 0) put_usage(out, c);
    fputs(".SH DESCRIPTION\n", out);
    put_paragraphs(out, c->summary);
    put_examples(out, c->examples);
    fputs(".SH OPTIONS\n", out);
    put_options(out, c);
    for (size_t i = 0; i < c->n_actions; i++) {
        fputs(".SS ", out);
        put(out, c->actions[i].name);
        fputc('\n', out);
        put_paragraphs(out, c->actions[i].summary);
        put_options(out, &c->actions[i]);
    }
    if (c->n_actions > 0)
        fputs(".SS Every command\n", out);
    else
        fputs(".PP\nEvery command has these:\n", out);
    put_common_options(out);
    if (c->epilogue) {
        fputs(".SH NOTES\n", out);
        put_paragraphs(out, c->epilogue);
    }
    put_tail(out, c->exits, c->name);
}

/* czero(1) lists the commands. */
static void put_main_page(FILE *out)
{
    put_head(out, "czero", CZERO_SUMMARY);
    fputs(".SH SYNOPSIS\n\\fBczero\\fR \\fICOMMAND\\fR [options]\n.SH DESCRIPTION\n", out);
    put_paragraphs(out, CZERO_DESCRIPTION);
    put_examples(out, train_command.examples);
    fputs(".SH COMMANDS\n", out);
    for (size_t i = 0; czero_commands[i].name; i++) {
        fputs(".TP\n\\fBczero\\-", out);
        put(out, czero_commands[i].name);
        fputs("\\fR(1)\n", out);
        put_paragraphs(out, czero_commands[i].summary);
    }
    fputs(".SH OPTIONS\nEvery command has these; its page tells of its own.\n", out);
    put_common_options(out);
    put_tail(out, NULL, "czero");
}

/* ---- the command ---------------------------------------------------------------------------- */

/* Made in memory, then in ASCII: roff needs options to read UTF-8. */
static cz_status write_page(FILE *out, const struct arg_command *c)
{
    char *text = NULL;
    size_t nbytes;
    FILE *page = open_memstream(&text, &nbytes);
    if (page && c) put_command_page(page, c);
    if (page && !c) put_main_page(page);
    if (!page || fclose(page) != 0) {
        free(text);
        return err_set(CZ_NOMEM, errno, "no memory for a page");
    }
    terminal_put_ascii(out, text);
    free(text);
    return CZ_OK;
}

static cz_status write_file(const struct out_folder *in, const char *command,
                            const struct arg_command *c)
{
    char page[64], name[72], *text = NULL;
    size_t nbytes;
    snprintf(name, sizeof name, "%s.1", page_name(command, page));
    FILE *file = open_memstream(&text, &nbytes);
    if (!file) return err_set(CZ_NOMEM, errno, "no memory for a page");
    cz_status st = write_page(file, c);
    if (fclose(file) != 0 && st == CZ_OK) st = err_set(CZ_NOMEM, errno, "no memory for a page");
    if (st == CZ_OK) st = file_save_in(in, name, text, nbytes);
    free(text);
    return st;
}

static cz_status write_all(const char *dir)
{
    struct out_folder in;
    if (access(dir, F_OK) != 0) return err_set(CZ_IO, errno, "%s: cannot be written", dir);
    TRY(out_folder_open(dir, &in));
    cz_status st = write_file(&in, "czero", NULL);
    if (st == CZ_OK) st = write_file(&in, zero_to_fp32_command.name, &zero_to_fp32_command);
    for (size_t i = 0; czero_commands[i].name && st == CZ_OK; i++)
        st = write_file(&in, czero_commands[i].options->name, czero_commands[i].options);
    out_folder_close(&in);
    return st;
}

int cmd_man(int argc, char **argv)
{
    struct man_options o = {.command = NULL};
    enum args_result parsed = args_parse(&man_command, argc, argv, &o);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    if (o.output && o.command) {
        tool_complain("czero man", "--output writes all pages: name no command");
        return EXIT_USAGE;
    }
    if (o.output) return write_all(o.output) == CZ_OK ? EXIT_OK : tool_fail();
    const struct arg_command *page = NULL;
    bool known = !o.command || strcmp(o.command, "czero") == 0;
    if (!known && strcmp(o.command, zero_to_fp32_command.name) == 0) page = &zero_to_fp32_command;
    for (size_t i = 0; !known && !page && czero_commands[i].name; i++)
        if (strcmp(o.command, czero_commands[i].name) == 0) page = czero_commands[i].options;
    if (!known && !page) return tool_unknown_command("czero man", o.command);
    return write_page(stdout, page) == CZ_OK ? EXIT_OK : tool_fail();
}
