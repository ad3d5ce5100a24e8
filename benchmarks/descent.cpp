// Gradient descent of a small ReLU network without biases, some seeds at once: one seed in each SIMD lane.
//
//   g++ -O3 -march=native -fno-math-errno -DDIMS=4,8,8,8,1 -DSAMPLES=16 descent.cpp -o descent
//   ./descent IN OUT T1 H...        each H: round(T1/H) steps of W -= H grad risk,  risk = 1/(2 SAMPLES) sum |f(x) - y|^2
//
// IN holds for each seed x (SAMPLES, DIMS[0]), y (SAMPLES, DIMS[-1]) and the weights W_l (DIMS[l+1], DIMS[l]), float64, C order.
// OUT holds for each seed and each H the end weights.  Hidden units pass z where z > 0 (so the derivative at 0 is 0); no
// -ffast-math, which could change what happens at that comparison.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#ifdef __AVX512F__
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
typedef double v __attribute__((vector_size(8 * LANES)));

constexpr int dims[] = {DIMS}, N = SAMPLES, L = sizeof(dims) / sizeof(int) - 1;  // L layers of weights
constexpr int weights_before(int l) { return l ? weights_before(l - 1) + dims[l - 1] * dims[l] : 0; }
constexpr int units_before(int l) { return l ? units_before(l - 1) + dims[l - 1] : 0; }
constexpr int WEIGHTS = weights_before(L), X = N * dims[0], Y = N * dims[L], PER_SEED = X + Y + WEIGHTS;

static v theta[WEIGHTS], target[Y];
static v unit[N * units_before(L + 1)];   // activations, [layer][unit][sample]; at first x
static v delta[N * units_before(L + 1)];  // N d risk / d preactivation, the same order

// Products of matrices in tiles of sums that stay in registers: at least 8 sums at once hide the latency of the FMA (4 cycles,
// 2 units), and 16 registers hold at most 12 of them beside the factors.
struct Tile { int m, n; };
constexpr Tile tile_of(int M, int Q) {
  Tile best{1, 1};
  int least = 1 << 30;
  for (int m = 1; m <= std::min(M, 6); m++)
    for (int n = 1; n <= std::min(Q, 10); n++)
      if (m * n <= 12) {
        int cost = ((M + m - 1) / m) * ((Q + n - 1) / n) * (std::max(m * n, 8) * 8 + m + n);  // arithmetic, then loads
        if (cost < least) least = cost, best = {m, n};
      }
  return best;
}

// put(i, j, sum_k a[i am + k ak] b[k bk + j bn]) for i < m and j < n.  All sizes and strides are known here, so it unrolls.
template <int m, int n, int K, int am, int ak, int bk, int bn, class Put>
inline __attribute__((always_inline)) void tile(const v* a, const v* b, int i0, int j0, Put put) {
  v sum[m][n] = {};
  for (int k = 0; k < K; k++)
#pragma GCC unroll 16
    for (int i = 0; i < m; i++)
#pragma GCC unroll 16
      for (int j = 0; j < n; j++) sum[i][j] += a[(i0 + i) * am + k * ak] * b[k * bk + (j0 + j) * bn];
#pragma GCC unroll 16
  for (int i = 0; i < m; i++)
#pragma GCC unroll 16
    for (int j = 0; j < n; j++) put(i0 + i, j0 + j, sum[i][j]);
}

template <int M, int Q, int K, int am, int ak, int bk, int bn, class Put>
inline void product(const v* a, const v* b, Put put) {
  constexpr Tile t = tile_of(M, Q);
  constexpr int m = M % t.m, n = Q % t.n;  // what the whole tiles leave
  for (int i = 0; i < M - m; i += t.m) {
    for (int j = 0; j < Q - n; j += t.n) tile<t.m, t.n, K, am, ak, bk, bn>(a, b, i, j, put);
    if constexpr (n > 0) tile<t.m, n, K, am, ak, bk, bn>(a, b, i, Q - n, put);
  }
  if constexpr (m > 0) {
    for (int j = 0; j < Q - n; j += t.n) tile<m, t.n, K, am, ak, bk, bn>(a, b, M - m, j, put);
    if constexpr (n > 0) tile<m, n, K, am, ak, bk, bn>(a, b, M - m, Q - n, put);
  }
}

// Layer l takes dims[l] units to dims[l+1]; below it all later layers, then its own way back and its step.
template <int l = 0>
inline void step(double rate) {
  if constexpr (l < L) {
    constexpr int in = dims[l], out = dims[l + 1];
    v *W = theta + weights_before(l), *below = unit + N * units_before(l), *above = below + N * in;
    v *d_below = delta + N * units_before(l), *d_above = d_below + N * in;
    product<out, N, in, in, 1, N, 1>(W, below, [&](int i, int s, v z) {
      if constexpr (l == L - 1) d_above[i * N + s] = z - target[i * N + s];
      else above[i * N + s] = z > 0.0 ? z : v{};
    });
    step<l + 1>(rate);
    if constexpr (l > 0)
      product<in, N, out, 1, in, N, 1>(W, d_above, [&](int j, int s, v d) {
        d_below[j * N + s] = below[j * N + s] > 0.0 ? d : v{};
      });
    // The way back has used these weights for the last time, so they may move now.
    product<out, in, N, N, 1, 1, N>(d_above, below, [&](int i, int j, v g) { W[i * in + j] -= rate * g; });
  }
}

int main(int argc, char** argv) {
  FILE *in = fopen(argv[1], "rb"), *out = fopen(argv[2], "wb");
  double t1 = atof(argv[3]);
  int rates = argc - 4;
  std::vector<double> seeds(LANES * PER_SEED), ends(LANES * rates * WEIGHTS);
  for (int read; (read = fread(seeds.data(), 8 * PER_SEED, LANES, in)) > 0;) {  // lanes without a seed run on what is there
    for (int r = 0; r < rates; r++) {
      double h = atof(argv[4 + r]);
      for (int lane = 0; lane < LANES; lane++) {
        const double *x = &seeds[lane * PER_SEED], *y = x + X, *w = y + Y;
        for (int s = 0; s < N; s++) {
          for (int j = 0; j < dims[0]; j++) unit[j * N + s][lane] = x[s * dims[0] + j];
          for (int i = 0; i < dims[L]; i++) target[i * N + s][lane] = y[s * dims[L] + i];
        }
        for (int p = 0; p < WEIGHTS; p++) theta[p][lane] = w[p];
      }
      for (long k = lround(t1 / h); k > 0; k--) step(h / N);
      for (int lane = 0; lane < LANES; lane++)
        for (int p = 0; p < WEIGHTS; p++) ends[(lane * rates + r) * WEIGHTS + p] = theta[p][lane];
    }
    fwrite(ends.data(), 8 * rates * WEIGHTS, read, out);
  }
  return fclose(out);
}
