#include "trainer/algo/tokens.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace tdock::algo {
namespace {

void CheckSequences(const Tokens& tokens) {
  TORCH_CHECK(tokens.sequence.defined(), "this needs to know which sequences the tokens make up: Tokens::sequence");
  TORCH_CHECK(tokens.sequence.sizes() == tokens.mask.sizes(), "sequence numbers of ", tokens.sequence.sizes(),
              " do not fit a mask of ", tokens.mask.sizes());
}

// index_add adds one number after another, which in float32 loses digits of long sequences.
at::Tensor SumInFloat64(const at::Tensor& values, const Tokens& tokens) {
  CheckSequences(tokens);
  const at::Tensor x = Unmasked(values, tokens.mask).to(at::kDouble);
  return at::zeros({tokens.sequences}, x.options()).index_add(0, tokens.sequence, x);
}

}  // namespace

Tokens MakeTokens(const at::Tensor& mask, std::span<const int64_t> lengths) {
  int64_t total = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    TORCH_CHECK(lengths[i] >= 0, "sequence ", i, " has ", lengths[i], " tokens");
    total += lengths[i];
  }
  TORCH_CHECK(mask.dim() == 1 && mask.size(0) == total, "a mask of ", mask.sizes(), " does not fit sequences of ",
              total, " tokens in all");
  const at::Tensor counts = at::tensor(std::vector<int64_t>(lengths.begin(), lengths.end()), at::kLong);
  return {mask, at::repeat_interleave(counts, std::optional<int64_t>(total)).to(mask.device()),
          static_cast<int64_t>(lengths.size())};
}

at::Tensor Unmasked(const at::Tensor& values, const at::Tensor& mask) {
  TORCH_CHECK(values.sizes() == mask.sizes(), "values of ", values.sizes(), " do not fit a mask of ", mask.sizes());
  // Not values·mask: a masked value may be infinite.
  return values.masked_fill(mask == 0, 0.0);
}

at::Tensor SumBySequence(const at::Tensor& values, const Tokens& tokens) {
  return SumInFloat64(values, tokens).to(values.scalar_type());
}

at::Tensor CountBySequence(const Tokens& tokens) {
  return SumInFloat64(at::ones(tokens.mask.sizes(), tokens.mask.options().dtype(at::kDouble)), tokens);
}

at::Tensor MeanBySequence(const at::Tensor& values, const Tokens& tokens) {
  return (SumInFloat64(values, tokens) / CountBySequence(tokens).clamp_min(1)).to(values.scalar_type());
}

at::Tensor Spread(const at::Tensor& per_sequence, const Tokens& tokens) {
  CheckSequences(tokens);
  TORCH_CHECK(per_sequence.dim() == 1 && per_sequence.size(0) == tokens.sequences, "values of ", per_sequence.sizes(),
              " do not fit ", tokens.sequences, " sequences");
  return per_sequence.index_select(0, tokens.sequence);
}

at::Tensor LastCounted(const Tokens& tokens) {
  CheckSequences(tokens);
  const at::Tensor place = at::arange(tokens.mask.size(0), tokens.sequence.options());
  const at::Tensor last = at::full({tokens.sequences}, -1, place.options())
                              .scatter_reduce(0, tokens.sequence, place.masked_fill(tokens.mask == 0, -1), "amax");
  const at::Tensor none = (last < 0).nonzero();
  TORCH_CHECK(none.numel() == 0, "no token of sample ", none.numel() > 0 ? none[0][0].item<int64_t>() : 0, " counts");
  return last;
}

void CheckTokens(const char* name, const at::Tensor& values, const Tokens& tokens) {
  TORCH_CHECK(values.defined(), name, " are missing");
  TORCH_CHECK(values.dim() == 1 && values.sizes() == tokens.mask.sizes(), name, " of ", values.sizes(),
              " do not fit a mask of ", tokens.mask.sizes());
  TORCH_CHECK(at::isFloatingType(values.scalar_type()), name, " must be floating-point numbers, not ",
              values.scalar_type());
  const at::Tensor bad = at::isfinite(values).logical_not().logical_and(tokens.mask != 0);
  if (!bad.any().item<bool>()) return;
  const int64_t first = bad.nonzero()[0][0].item<int64_t>();
  const double value = values[first].item<double>();
  TORCH_CHECK(tokens.sequence.defined(), name, " must be finite: that of token ", first, " is ", value);
  const int64_t sequence = tokens.sequence[first].item<int64_t>();
  const int64_t begin = (tokens.sequence < sequence).sum().item<int64_t>();
  TORCH_CHECK(false, name, " must be finite: that of token ", first - begin, " of sample ", sequence, " is ", value);
}

at::Tensor Whiten(const at::Tensor& values, const Tokens& tokens) {
  CheckTokens("values to whiten", values, tokens);
  const at::Tensor counted = tokens.mask != 0;
  const at::Tensor x = values.to(at::kDouble);
  const at::Tensor chosen = x.masked_select(counted);
  if (chosen.numel() == 0) return at::zeros_like(values);
  // From the first value, so that equal ones lie on their mean exactly.
  const at::Tensor offset = chosen - chosen[0];
  const at::Tensor centred = offset - offset.mean();
  const double divisor = std::max<double>(static_cast<double>(chosen.numel() - 1), 1);
  const at::Tensor deviation = (centred.square().sum() / divisor + 1e-8).sqrt();
  return at::zeros_like(x).masked_scatter(counted, centred / deviation).to(values.scalar_type());
}

}  // namespace tdock::algo
