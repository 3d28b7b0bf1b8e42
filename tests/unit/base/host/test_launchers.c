/* Claims: processes that a launcher unknown to czero started as ranks are refused by its name; the
 * ranks of czero, MPI and Slurm are not; one process under any launcher runs; a platform that only
 * says how many there are leads to a warning. */
#include "tests/support/check_main.h"

#include "base/host/launchers.h"

#include <string.h>

static const char *const variables[] = {"CZERO_RANK",
                                        "CZERO_WORLD_SIZE",
                                        "CZERO_SHM_FD",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_RANK",
                                        "PMI_SIZE",
                                        "PMI_RANK",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_PROCID",
                                        "RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "LOCAL_SIZE",
                                        "CROSS_SIZE",
                                        "TORCHELASTIC_RUN_ID",
                                        "ACCELERATE_MIXED_PRECISION",
                                        "TF_CONFIG",
                                        "HOROVOD_RANK",
                                        "MV2_COMM_WORLD_RANK",
                                        "JSM_NAMESPACE_RANK",
                                        "FLUX_TASK_RANK"};

/* "A=1 B=2", or "": nothing but these. */
static void environment(const char *text)
{
    char copy[256], *at = copy, *word;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i]);
    snprintf(copy, sizeof copy, "%s", text);
    while ((word = strsep(&at, " "))) {
        char *equals = strchr(word, '=');
        if (!equals) continue;
        *equals = '\0';
        setenv(word, equals + 1, 1);
    }
}

static int n_warnings;
static char warning[512];
static void count(enum cz_log_level level, const char *line, void *user)
{
    (void)user;
    if (level != CZ_LOG_WARN) return;
    n_warnings++;
    snprintf(warning, sizeof warning, "%s", line);
}

START_TEST(ranks_of_other_launchers_are_refused_by_name)
{
    static const struct {
        const char *environment, *words;
    } cases[] = {
        {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 TORCHELASTIC_RUN_ID=x",
         "started by torchrun as rank 0 of 2 (RANK, WORLD_SIZE): use czero launch -n 2"},
        {"RANK=1 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=x ACCELERATE_MIXED_PRECISION=no",
         "started by accelerate launch as rank 1 of 2"},
        {"RANK=1 WORLD_SIZE=3 LOCAL_SIZE=3 CROSS_SIZE=1", "deepspeed's launcher as rank 1 of 3"},
        {"RANK=1 WORLD_SIZE=4", "a launcher like it as rank 1 of 4 (RANK, WORLD_SIZE)"},
        {"LOCAL_RANK=1 WORLD_SIZE=4", "as rank 1 of 4 (LOCAL_RANK, WORLD_SIZE)"},
        {"HOROVOD_RANK=0 HOROVOD_SIZE=2", "started by horovodrun as rank 0 of 2"},
        {"MV2_COMM_WORLD_RANK=0 MV2_COMM_WORLD_SIZE=2", "MVAPICH's mpirun as rank 0 of 2"},
        {"JSM_NAMESPACE_RANK=0 JSM_NAMESPACE_SIZE=2", "jsrun as rank 0 of 2"},
        {"FLUX_TASK_RANK=0 FLUX_JOB_SIZE=2", "flux run as rank 0 of 2"},
        {"OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 RANK=0 WORLD_SIZE=2", "rank 0 of 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        environment(cases[i].environment);
        ck_fails(launchers_check_world(), CZ_INVALID);
        ck_assert_msg(strstr(cz_last_error(), cases[i].words), "%s", cz_last_error());
        ck_fails(launchers_check_only(), CZ_INVALID);
    }
}
END_TEST

START_TEST(a_process_alone_is_no_rank)
{
    static const char *const cases[] = {
        "",
        "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 TORCHELASTIC_RUN_ID=x",
        "RANK=0",
        "RANK=0 WORLD_SIZE=two",
        "RANK= WORLD_SIZE=2x",
        "CZERO_RANK=0 CZERO_WORLD_SIZE=1 RANK=1 WORLD_SIZE=2",
        "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1",
    };
    cz_log_set_sink(count, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        environment(cases[i]);
        ck_ok(launchers_check_world());
    }
    ck_assert_int_eq(n_warnings, 0);
    cz_log_set_sink(NULL, NULL);
}
END_TEST

START_TEST(a_size_without_a_rank_is_a_warning)
{
    cz_log_set_sink(count, NULL);
    environment("WORLD_SIZE=8");
    ck_ok(launchers_check_world());
    ck_assert_int_eq(n_warnings, 1);
    ck_assert_msg(strstr(warning, "WORLD_SIZE is 8, but this run has 1 rank"), "%s", warning);
    environment("TF_CONFIG={\"cluster\":{\"worker\":[\"a:1\",\"b:1\"]},\"task\":{\"index\":0}}");
    ck_ok(launchers_check_world());
    ck_assert_int_eq(n_warnings, 2);
    ck_assert_msg(strstr(warning, "TF_CONFIG"), "%s", warning);
    environment("TF_CONFIG={\"cluster\":{\"worker\":[\"a:1\"]},\"task\":{\"a\":0,\"index\":0}}");
    ck_ok(launchers_check_world());
    ck_assert_int_eq(n_warnings, 2);
    cz_log_set_sink(NULL, NULL);
}
END_TEST

START_TEST(the_rank_is_the_launchers)
{
    static const struct {
        const char *environment;
        int rank;
    } cases[] = {
        {"", 0},
        {"SLURM_PROCID=5", 5},
        {"SLURM_PROCID=5 OMPI_COMM_WORLD_RANK=4", 4},
        {"SLURM_PROCID=5 CZERO_RANK=2", 2},
        {"RANK=3 WORLD_SIZE=4", 3},
        {"RANK=3 WORLD_SIZE=1", 0},
        {"RANK=3", 0},
        {"LOCAL_RANK=2 WORLD_SIZE=4", 2},
        {"CZERO_RANK=0 CZERO_WORLD_SIZE=1 RANK=3 WORLD_SIZE=4", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        environment(cases[i].environment);
        ck_assert_msg(launchers_rank() == cases[i].rank, "%s: %d", cases[i].environment,
                      launchers_rank());
    }
}
END_TEST

START_TEST(an_engine_without_its_world_is_refused)
{
    environment("RANK=0 WORLD_SIZE=2");
    ck_fails(launchers_check_alone(), CZ_INVALID);
    environment("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1");
    ck_fails(launchers_check_alone(), CZ_INVALID);
    ck_assert_msg(strstr(cz_last_error(), "rank 1 of 2 (OMPI_COMM_WORLD_SIZE), but the engine"),
                  "%s", cz_last_error());
    ck_fails(launchers_check_only(), CZ_INVALID);
    ck_assert_msg(strstr(cz_last_error(), "started 2 times by mpirun"), "%s", cz_last_error());
    environment("CZERO_WORLD_SIZE=2 CZERO_RANK=1");
    ck_fails(launchers_check_alone(), CZ_INVALID);
    environment("CZERO_WORLD_SIZE=1 CZERO_RANK=0");
    ck_ok(launchers_check_alone());
    environment("");
    ck_ok(launchers_check_alone());
    ck_ok(launchers_check_only());
}
END_TEST

/* Each launcher's own variable; the first that says more than nothing counts. */
START_TEST(mpi_launchers_are_known_by_their_variables)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_PROCID",
                                        "SLURM_STEP_NUM_TASKS"};
    static const struct {
        const char *values[4];
        int want;
    } cases[] = {
        {{NULL, NULL, NULL, NULL}, 0}, {{"3", "4", "0", "5"}, 3},   {{"1", "4", "0", "5"}, 1},
        {{"0", "4", "0", "5"}, 4},     {{NULL, "4", "0", "5"}, 4},  {{NULL, "1", "0", "5"}, 1},
        {{NULL, NULL, "0", "5"}, 5},   {{"0", "0", "0", "5"}, 5},   {{NULL, NULL, NULL, "5"}, 0},
        {{NULL, NULL, "0", "1"}, 1},   {{NULL, NULL, "0", "-2"}, 0}};
    environment("");
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        for (int k = 0; k < 4; k++)
            if (cases[i].values[k])
                setenv(names[k], cases[i].values[k], 1);
            else
                unsetenv(names[k]);
        ck_assert_int_eq(launchers_mpi_size(), cases[i].want);
    }
}
END_TEST

/* What a platform says to every process is no warning to those that czero launch has started, and
 * no reason to warn before it starts them. */
START_TEST(czero_launch_starts_what_a_platform_names)
{
    n_warnings = 0;
    cz_log_set_sink(count, NULL);
    environment("WORLD_SIZE=8");
    ck_ok(launchers_check_only());
    environment("TF_CONFIG={\"cluster\":{\"worker\":[\"a:1\",\"b:1\"]},\"task\":{\"index\":0}}");
    ck_ok(launchers_check_only());
    environment("CZERO_RANK=0 CZERO_WORLD_SIZE=1 RANK=1 WORLD_SIZE=2");
    ck_ok(launchers_check_only());
    ck_assert_int_eq(n_warnings, 0);
    cz_log_set_sink(NULL, NULL);
}
END_TEST

TEST_MAIN("base/launchers", mpi_launchers_are_known_by_their_variables,
          czero_launch_starts_what_a_platform_names, ranks_of_other_launchers_are_refused_by_name,
          a_process_alone_is_no_rank, a_size_without_a_rank_is_a_warning, the_rank_is_the_launchers,
          an_engine_without_its_world_is_refused)
