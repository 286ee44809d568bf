#include "model/decoder/layers.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <optional>

#include "core/base/rng.h"
#include "kernels/elementwise.h"
#include "kernels/products.h"

namespace tdock::model {
namespace {

at::Tensor LibtorchNorm(const at::Tensor& x, NormKind kind, const at::Tensor& weight, const at::Tensor& bias,
                        double eps) {
  const std::vector<int64_t> size = {x.size(-1)};
  // Squares of half precision are summed up in float32.
  const at::Tensor wide = x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf ? x.to(at::kFloat) : x;
  const auto optional = [&](const at::Tensor& parameter) {
    return parameter.defined() ? std::optional(As(parameter, wide)) : std::nullopt;
  };
  const at::Tensor y = kind == NormKind::kRms ? at::rms_norm(wide, size, optional(weight), eps)
                                              : at::layer_norm(wide, size, optional(weight), optional(bias), eps);
  return y.to(x.scalar_type());
}

at::Tensor LibtorchActivate(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
  }
  return x;
}

kernels::Activation KernelOf(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return kernels::Activation::kSilu;
    case Activation::kRelu:
      return kernels::Activation::kRelu;
    case Activation::kGelu:
      return kernels::Activation::kGelu;
    case Activation::kGeluTanh:
      return kernels::Activation::kGeluTanh;
  }
  TORCH_CHECK(false, "there is no activation number ", static_cast<int>(activation));
}

// None for tensors without data.
std::optional<at::Generator> GeneratorFor(const at::Device& device, uint64_t seed) {
  if (device.is_meta()) return std::nullopt;
  if (device.is_cpu()) return at::make_generator<at::CPUGeneratorImpl>(seed);
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(seed);
  return generator;
}

}  // namespace

at::Tensor Drop(const at::Tensor& x, const Dropout& dropout) {
  if (dropout.probability == 0) return x;
  at::Tensor dropped = at::empty(x.sizes(), x.options().dtype(at::kBool));
  {
    const at::NoGradGuard no_grad;
    dropped.bernoulli_(dropout.probability, GeneratorFor(x.device(), dropout.seed));
  }
  return x.masked_fill(dropped, 0) * (1 / (1 - dropout.probability));
}

at::Tensor Linear::operator()(const at::Tensor& x, const Dropout& into_adapters) const {
  if (packed != nullptr && !at::GradMode::is_enabled()) return ProductOfPacked(x);
  at::Tensor y = Product(x, weight, bias, arithmetic);
  for (size_t i = 0; i < adapters.size(); ++i) {
    const Adapter& adapter = adapters[i];
    const at::Tensor input = Drop(x, {into_adapters.probability, DeriveSeed(into_adapters.seed, i)});
    const at::Tensor narrow = Product(input, adapter.a, {}, arithmetic);
    const at::Tensor change = Product(narrow, adapter.b, {}, arithmetic) * adapter.scale;
    // What lies before and behind the rows that it changes stays.
    const int64_t behind = weight.size(0) - adapter.begin - adapter.b.size(0);
    y = y + (adapter.begin == 0 && behind == 0 ? change : at::constant_pad_nd(change, {adapter.begin, behind}));
  }
  return y;
}

at::Tensor Linear::ProductOfPacked(const at::Tensor& x) const {
  at::Tensor y = kernels::Product(x, packed->weight, As(bias, x));
  for (size_t i = 0; i < adapters.size(); ++i) {
    const auto& [a, b] = packed->adapters[i];
    y.narrow(-1, adapters[i].begin, b.outputs()) +=
        kernels::Product(kernels::Product(x, a, {}), b, {}) * adapters[i].scale;
  }
  return y;
}

void Linear::Pack(at::ScalarType compute_type, bool int8) {
  using kernels::PackedFormat;
  const PackedFormat exact = compute_type == at::kFloat ? PackedFormat::kFloat : PackedFormat::kBFloat16;
  auto made = std::make_shared<PackedLinear>(
      PackedLinear{kernels::PackedMatrix(weight, int8 ? PackedFormat::kInt8 : exact), {}});
  for (const Adapter& adapter : adapters) {
    made->adapters.emplace_back(kernels::PackedMatrix(adapter.a, exact), kernels::PackedMatrix(adapter.b, exact));
  }
  packed = std::move(made);
}

at::Tensor Norm::operator()(const at::Tensor& x) const {
  if (!kernels::IsElementwise(x)) return LibtorchNorm(x, kind, weight, bias, eps);
  const auto known = [](const at::Tensor& parameter) {
    return parameter.defined() && !kernels::IsElementwise(parameter) ? parameter.to(at::kFloat) : parameter;
  };
  return kind == NormKind::kRms ? kernels::RmsNorm(x, known(weight), eps)
                                : kernels::LayerNorm(x, known(weight), known(bias), eps);
}

at::Tensor Activate(Activation activation, const at::Tensor& x) {
  return kernels::IsElementwise(x) ? kernels::Activate(KernelOf(activation), x) : LibtorchActivate(activation, x);
}

at::Tensor Gate(Activation activation, const at::Tensor& gate_and_up) {
  if (kernels::IsElementwise(gate_and_up)) return kernels::Gate(KernelOf(activation), gate_and_up);
  const auto halves = gate_and_up.chunk(2, -1);
  return LibtorchActivate(activation, halves[0]) * halves[1];
}

at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  if (kernels::IsElementwise(x)) return kernels::Rotate(x, cos, sin);
  const auto halves = x.chunk(2, -1);
  return (x * cos + at::cat({-halves[1], halves[0]}, -1) * sin).to(x.scalar_type());
}

}  // namespace tdock::model
