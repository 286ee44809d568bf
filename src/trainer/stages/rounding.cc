#include "trainer/stages/rounding.h"

#include <ATen/ATen.h>

#include <limits>
#include <mutex>
#include <optional>

namespace tdock::trainer {
namespace {

// int64 [size] of random bits.
at::Tensor RandomBits(int64_t size, const at::Tensor& like, uint64_t seed) {
  at::Generator generator = [&] {
    // A generator of the device, whichever that is; its own state stays.
    at::Generator shared = at::globalContext().defaultGenerator(like.device());
    const std::lock_guard<std::mutex> lock(shared.mutex());
    return shared.clone();
  }();
  generator.set_current_seed(seed);
  return at::empty({size}, like.options().dtype(at::kLong))
      .random_(std::numeric_limits<int64_t>::min(), std::nullopt, generator);
}

}  // namespace

at::Tensor RoundedAtRandom(const at::Tensor& values, uint64_t seed) {
  // A bfloat16 is the upper half of a float. What is added to the lower half carries into the upper one, a step away
  // from zero, as often as the lower half is large.
  constexpr int kLowerHalf = 0xffff;
  const int64_t size = values.numel();
  const at::Tensor draws = RandomBits((size + 3) / 4, values, seed).view(at::kShort).narrow(0, 0, size);
  at::Tensor bits = draws.to(at::kInt).bitwise_and_(kLowerHalf);
  return bits.add_(values.view(at::kInt)).bitwise_and_(~kLowerHalf).view(at::kFloat);
}

}  // namespace tdock::trainer
