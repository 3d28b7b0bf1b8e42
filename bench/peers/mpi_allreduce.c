/* Peer of bench/comm.py: MPI_Allreduce with MPI_SUM in fp32, minimum and median microseconds per size. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    enum { N = 200 };
    double us[N];
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 1; i < argc; i++) {
        size_t kib = strtoul(argv[i], NULL, 10), numel = kib * 1024 / sizeof(float);
        int n = kib > 4096 ? N / 10 : N;
        float *x = calloc(numel, sizeof *x), *y = calloc(numel, sizeof *y);
        for (int k = -3; k < n; k++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double begin = MPI_Wtime();
            MPI_Allreduce(x, y, (int)numel, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            if (k >= 0) us[k] = 1e6 * (MPI_Wtime() - begin);
        }
        qsort(us, (size_t)n, sizeof *us, by_value);
        if (rank == 0) printf("fp32 %zu %.1f %.1f\n", kib, us[0], us[n / 2]);
        free(x);
        free(y);
    }
    MPI_Finalize();
}
