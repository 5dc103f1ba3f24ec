#include "product.h"

namespace tamis {

void product_scalar(const float* const* x, std::size_t count, const float* w, std::size_t n, std::size_t k,
                    float* const* out) {
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      float lanes[8] = {};
      for (std::size_t c = 0; c < k; ++c) lanes[c % 8] += x[i][c] * w[j * k + c];
      const float even = (lanes[0] + lanes[4]) + (lanes[2] + lanes[6]);
      const float odd = (lanes[1] + lanes[5]) + (lanes[3] + lanes[7]);
      out[i][j] = even + odd;
    }
  }
}

}  // namespace tamis
