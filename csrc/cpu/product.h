// Rows times a weight matrix in fp32: out[i][n] = sum over k of x[i][k] * w[n][k].
//
// A sum is the same bits in every shape: eight lanes, of which lane j takes k = j, j + 8, j + 16, ... one after the
// other, and then (l0 + l4) + (l2 + l6) + ((l1 + l5) + (l3 + l7)). Tiles differ only in how many sums run at once. The
// AVX2 path fuses products and sums, the scalar one does not: they differ by rounding.
#pragma once

#include <cstddef>

namespace tamis {

// Pointers to `count` rows of k values each; w is n rows of k values, dense; out[i] takes n values.
using Product = void (*)(const float* const* x, std::size_t count, const float* w, std::size_t n, std::size_t k,
                         float* const* out);

void product_scalar(const float* const* x, std::size_t count, const float* w, std::size_t n, std::size_t k,
                    float* const* out);
void product_avx2(const float* const* x, std::size_t count, const float* w, std::size_t n, std::size_t k,
                  float* const* out);

}  // namespace tamis
