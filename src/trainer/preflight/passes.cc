#include "trainer/preflight/passes.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>

#include "core/base/status.h"
#include "model/decoder/dense_cache.h"
#include "trainer/preflight/tensor_bytes.h"

namespace tdock::trainer {
namespace {

// Whether attention on the device of `decoder` is one of the kernels that never hold all pairs of tokens.
bool HasFusedAttention(const model::Decoder& decoder) {
  const model::ModelConfig& c = decoder.config();
  constexpr int64_t kTokens = 8, kMath = 0;
  const bool widened = decoder.device().is_cpu() && c10::isReducedFloatingType(decoder.compute_type());
  const auto options = at::TensorOptions(decoder.device()).dtype(widened ? at::kFloat : decoder.compute_type());
  const auto heads = [&](int64_t count) {
    return at::zeros({1, count, kTokens, c.head_dim}, options).requires_grad_();
  };
  const at::Tensor mask = at::ones({1, 1, kTokens, kTokens}, at::TensorOptions(decoder.device()).dtype(at::kBool));
  return at::_fused_sdp_choice(heads(c.num_heads), heads(c.num_kv_heads), heads(c.num_kv_heads), mask, 0.0, false,
                               std::nullopt, c.num_heads != c.num_kv_heads) != kMath;
}

Widened WidenedBy(const model::Decoder& decoder) {
  if (!decoder.device().is_cpu() || !c10::isReducedFloatingType(decoder.compute_type())) return {};
  const char* const asks = decoder.compute_type() == at::kBFloat16 ? "mkldnn::_is_mkldnn_bf16_supported"
                                                                   : "mkldnn::_is_mkldnn_fp16_supported";
  const bool fast = c10::Dispatcher::singleton().findSchemaOrThrow(asks, "").typed<bool()>().call();
  return {.attention = true, .products = !fast};
}

// The key whose kernels come before those of gradients, so that what they cast is kept for the gradients as it is in a
// decoder. Nobody else uses it: it is that of devices which libtorch does not know.
constexpr c10::DispatchKey kBeforeGradients = c10::DispatchKey::AutocastPrivateUse1;

at::Tensor Wide(const at::Tensor& x) { return c10::isReducedFloatingType(x.scalar_type()) ? x.to(at::kFloat) : x; }
std::optional<at::Tensor> Wide(const std::optional<at::Tensor>& x) {
  return x.has_value() && x->defined() ? std::optional(Wide(*x)) : std::nullopt;
}

at::Tensor WideLinear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const c10::impl::ExcludeDispatchKeyGuard rest(kBeforeGradients);
  return at::linear(Wide(x), Wide(weight), Wide(bias)).to(x.scalar_type());
}

at::Tensor WideAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                         std::optional<double> scale, bool enable_gqa) {
  const c10::impl::ExcludeDispatchKeyGuard rest(kBeforeGradients);
  return at::scaled_dot_product_attention(Wide(q), Wide(k), Wide(v), mask, dropout, is_causal, scale, enable_gqa)
      .to(q.scalar_type());
}

// While it exists, this thread widens tensors without data as the decoder widens those of its device.
class Widening {
 public:
  explicit Widening(const Widened& widened)
      : others_(torch::Library::IMPL, "_", kBeforeGradients, __FILE__, __LINE__),
        kernels_(torch::Library::IMPL, "aten", kBeforeGradients, __FILE__, __LINE__) {
    others_.fallback(torch::CppFunction::makeFallthrough());
    if (widened.products) kernels_.impl("linear", TORCH_FN(WideLinear));
    if (widened.attention) kernels_.impl("scaled_dot_product_attention", TORCH_FN(WideAttention));
    Use(true);
  }
  ~Widening() { Use(false); }
  Widening(const Widening&) = delete;
  Widening& operator=(const Widening&) = delete;

 private:
  static void Use(bool used) {
    c10::impl::tls_set_dispatch_key_excluded(kBeforeGradients, !used);  // as autocasting is unless it is asked for
    c10::impl::tls_set_dispatch_key_included(kBeforeGradients, used);
  }

  torch::Library others_, kernels_;
};

PassBytes MeasurePass(const Outline& outline, std::span<const Sequence> samples, const PassOptions& options) {
  at::AutoGradMode mode(options.gradients);
  const TensorBytes bytes(outline.fused);
  const Widening widening(outline.widened);
  const bool of_values = outline.decoder.config().head == model::Head::kValue;
  Layout layout = MakeLayout(samples, options.max_row_tokens, at::kMeta,
                             of_values ? Scored::kValuesAt : Scored::kLogProbs, options.max_shared_row_tokens);
  if (options.gradients) layout.batch.dropout_seed = 0;
  PassBytes result;
  {
    const at::Tensor hidden = outline.decoder.Hidden(layout.batch);
    result.activations = options.gradients ? bytes.live() : bytes.peak();
  }
  ResponseFigures figures;
  if (of_values) {
    figures.log_probs = ScoreValues(outline.decoder, layout);
  } else {
    figures = ScoreResponses(outline.decoder, layout, options.temperature, options.entropy);
  }
  result.logits = std::max<int64_t>(bytes.peak() - result.activations, 0);
  result.in_heap = bytes.peak_in_heap();
  if (!options.gradients) return result;
  // Objectives add a few numbers for each response token.
  at::Tensor loss = (figures.log_probs * figures.log_probs).sum();
  if (options.entropy == Entropy::kWithGradients && !of_values) loss = loss + figures.entropy.sum();
  const auto gradients = torch::autograd::grad({loss}, outline.decoder.trainable());
  result.gradients = std::max<int64_t>(bytes.peak() - result.activations - result.logits, 0);
  result.in_heap = bytes.peak_in_heap();
  return result;
}

int64_t Tokens(const MicroBatch& micro) {
  int64_t tokens = 0;
  for (const Sequence& sample : micro.samples) {
    tokens += static_cast<int64_t>(sample.prompt.size() + sample.response.size());
  }
  return tokens;
}

}  // namespace

absl::StatusOr<Outline> OutlineOf(const model::Decoder& decoder, int64_t vocabulary, int64_t longest_tokens) {
  model::Decoder outline = model::Decoder::Uninitialised(decoder.config(), at::kMeta, decoder.dtype());
  if (decoder.lora()) TDOCK_RETURN_IF_ERROR(outline.AddAdapters(*decoder.lora(), 0));
  outline.SetComputeType(decoder.compute_type());
  outline.SetRecomputed(decoder.recomputed());
  outline.SetDropout(decoder.dropout());
  if (decoder.config().head == model::Head::kTokens) outline.LimitVocabulary(vocabulary);
  outline.FixRopeLength(longest_tokens);
  outline.SetTrainable(true);
  return Outline{std::move(outline), HasFusedAttention(decoder), WidenedBy(decoder)};
}

Passes MeasurePasses(const Outline& outline, std::span<const Sequence> samples, const ForwardOptions& forward,
                     const at::Device& device, const PassOptions& options) {
  const std::vector<MicroBatch> micro_batches = CutMicroBatches(samples, forward, device);
  Passes passes{.largest = {}, .count = static_cast<int64_t>(micro_batches.size())};
  if (micro_batches.empty()) return passes;
  // One of these two holds most: the layers hold all tokens, the logits those that are predicted.
  const auto longest = std::max_element(micro_batches.begin(), micro_batches.end(),
                                        [](const auto& a, const auto& b) { return Tokens(a) < Tokens(b); });
  const auto widest = std::max_element(micro_batches.begin(), micro_batches.end(),
                                       [](const auto& a, const auto& b) { return a.tokens < b.tokens; });
  passes.largest = MeasurePass(outline, longest->samples, options);
  if (widest == longest) return passes;
  const PassBytes other = MeasurePass(outline, widest->samples, options);
  if (other.peak() > passes.largest.peak()) passes.largest = other;
  return passes;
}

GenerationBytes MeasureGeneration(const Outline& outline, const GenerationPass& pass) {
  at::NoGradGuard no_grad;
  const model::Decoder& decoder = outline.decoder;
  const TensorBytes bytes(outline.fused);
  const Widening widening(outline.widened);
  const auto index = at::TensorOptions(at::kMeta).dtype(at::kLong);
  const auto run = [&](int64_t sequences, int64_t tokens) {
    // Pages of a cache are counted elsewhere. Here nothing is in it before the pass.
    model::DenseCache cache(decoder.config(), at::TensorOptions(at::kMeta).dtype(decoder.compute_type()));
    std::vector<model::CachedPart> parts;
    for (int64_t i = 0; i < sequences; ++i) {
      parts.push_back({cache.Add(), 0, tokens});
      cache.Reserve(parts.back().sequence, tokens);
    }
    const at::Tensor zeros = at::zeros({1, sequences * tokens}, index);
    const at::Tensor hidden = decoder.Hidden({zeros, zeros}, cache.Begin(std::move(parts)).get()).squeeze(0);
    const at::Tensor logits = decoder.Logits(hidden.narrow(0, 0, sequences));
    // How tokens are chosen: see engine/sampling/sampler.cc.
    const at::Tensor log_probs = at::log_softmax(logits / 0.5, -1);
    const at::Tensor sums = log_probs.to(at::kDouble).exp().cumsum(-1);
  };
  run(pass.prompts, pass.prompt_tokens);
  run(pass.rows, 1);
  return {.passes = bytes.peak(), .in_heap = bytes.peak_in_heap()};
}

}  // namespace tdock::trainer
