/* The peer of collectives_bench: MPI_Allreduce of f32 sums, in place, timed in the same way. `run` builds it with mpicc.
 * Arguments: NAME SECONDS REPEATS BYTES...; the lines are about NAME, NAME-touched and, for the first size, NAME-barrier. */

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, ranks;

static uint64_t place_of(uint64_t element) {
  return (element * 11 + (element >> 10) * 7) % 64;
}
static float value_of(int of, uint64_t place) {
  return (float)(((uint64_t)of * 37 + place) % 64);
}

static void sum_in_place(float* data, uint64_t elements) {
  MPI_Allreduce(MPI_IN_PLACE, data, (int)elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* Touches the data as a training step does: the contribution has just been written, and the sum is read. One element of
 * each cache line is enough. Volatile, so that the compiler keeps every access. */
static void touch_and_sum(float* data, uint64_t elements) {
  volatile float* at = data;
  for (uint64_t i = 0; i < elements; i += 16)
    at[i] = at[i];
  sum_in_place(data, elements);
  for (uint64_t i = 0; i < elements; i += 16)
    (void)at[i];
}

static void barrier_only(float* data, uint64_t elements) {
  (void)data;
  (void)elements;
  MPI_Barrier(MPI_COMM_WORLD);
}

typedef void (*operation)(float* data, uint64_t elements);

static void verify(float* data, uint64_t elements) {
  float sums[64] = {0};
  for (uint64_t place = 0; place < 64; ++place)
    for (int r = 0; r < ranks; ++r)
      sums[place] += value_of(r, place);
  for (uint64_t i = 0; i < elements; ++i)
    data[i] = value_of(rank, place_of(i));
  sum_in_place(data, elements);
  for (uint64_t i = 0; i < elements; ++i)
    if (data[i] != sums[place_of(i)]) {
      fprintf(stderr, "openmpi: wrong sum of element %llu\n", (unsigned long long)i);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  /* Repeated sums in place would soon overflow to infinity. */
  for (uint64_t i = 0; i < elements; ++i)
    data[i] = 0;
}

/* Seconds per run over `iterations` consecutive runs, on the slowest rank. */
static double time_of(operation run, float* data, uint64_t elements, uint64_t iterations) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  for (uint64_t i = 0; i < iterations; ++i)
    run(data, elements);
  double slowest = MPI_Wtime() - start;
  MPI_Allreduce(MPI_IN_PLACE, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest / (double)iterations;
}

/* Warms up and determines how many runs take `seconds`. */
static uint64_t iterations_for(operation run, float* data, uint64_t elements, double seconds) {
  for (uint64_t iterations = 1;; iterations *= 2) {
    const double each = time_of(run, data, elements, iterations);
    if (each * (double)iterations >= seconds / 2) {
      const uint64_t result = (uint64_t)(seconds / each);
      return result > 0 ? result : 1;
    }
  }
}

static int ascending(const void* left, const void* right) {
  const double x = *(const double*)left, y = *(const double*)right;
  return (x > y) - (x < y);
}

static void measure(const char* name, const char* suffix, operation run, float* data, uint64_t elements, double seconds, int repeats,
                    double* times) {
  const uint64_t iterations = iterations_for(run, data, elements, seconds);
  for (int repeat = 0; repeat < repeats; ++repeat)
    times[repeat] = time_of(run, data, elements, iterations);
  qsort(times, (size_t)repeats, sizeof(double), ascending);
  if (rank != 0)
    return;
  printf("time what=%s%s ranks=%d bytes=%llu us=%.3f least=%.3f iterations=%llu\n", name, suffix, ranks,
         (unsigned long long)(elements * sizeof(float)), times[repeats / 2] * 1e6, times[0] * 1e6,
         (unsigned long long)iterations);
  fflush(stdout);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc < 5) {
    fprintf(stderr, "usage: %s NAME SECONDS REPEATS BYTES...\n", argv[0]);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const char* name = argv[1];
  const double seconds = atof(argv[2]);
  const int repeats = atoi(argv[3]);
  double* times = malloc((size_t)repeats * sizeof(double));
  for (int i = 4; i < argc; ++i) {
    const uint64_t elements = strtoull(argv[i], NULL, 10) / sizeof(float);
    float* data = aligned_alloc(64, (elements * sizeof(float) + 63) / 64 * 64);
    if (times == NULL || data == NULL)
      MPI_Abort(MPI_COMM_WORLD, 1);
    verify(data, elements);
    if (i == 4)
      measure(name, "-barrier", barrier_only, data, elements, seconds, repeats, times);
    measure(name, "", sum_in_place, data, elements, seconds, repeats, times);
    measure(name, "-touched", touch_and_sum, data, elements, seconds, repeats, times);
    free(data);
  }
  free(times);
  MPI_Finalize();
  return 0;
}
