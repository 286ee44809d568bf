#include "model/files/flops.h"

#include <algorithm>

namespace tdock::model {
namespace {

// Of all matrices.
double Weights(const ModelConfig& c) {
  const auto hidden = static_cast<double>(c.hidden_size), embedding = static_cast<double>(c.embedding());
  const double heads = static_cast<double>(2 * c.num_heads + 2 * c.num_kv_heads) * static_cast<double>(c.head_dim);
  const double mlp = (c.gated_mlp ? 3.0 : 2.0) * static_cast<double>(c.intermediate_size);
  const double layers = static_cast<double>(c.num_layers) * hidden * (heads + mlp);
  const double projections = c.embedding_size > 0 ? 2 * hidden * embedding : 0;
  const double table = static_cast<double>(c.vocab_size) * embedding;
  return layers + projections + table + (c.head == Head::kTokens ? table : embedding);
}

}  // namespace

double ForwardFlops(const ModelConfig& config, int64_t tokens) {
  double seen = 0;  // pairs of tokens, over all layers
  for (size_t layer = 0; layer < static_cast<size_t>(config.num_layers); ++layer) {
    const int64_t window = config.window(layer);
    seen += static_cast<double>(tokens) * static_cast<double>(window > 0 ? std::min(tokens, window) : tokens);
  }
  return 2 * Weights(config) * static_cast<double>(tokens) +
         4 * seen * static_cast<double>(config.num_heads) * static_cast<double>(config.head_dim);
}

double DeepSpeedChatFlops(const ModelConfig& config, int64_t tokens, bool recomputed) {
  const auto h = static_cast<double>(config.hidden_size), layers = static_cast<double>(config.num_layers);
  const auto s = static_cast<double>(tokens), vocabulary = static_cast<double>(config.vocab_size);
  return 24 * (recomputed ? 4 : 3) * s * layers * h * h * (1 + s / (6 * h) + vocabulary / (16 * layers * h));
}

}  // namespace tdock::model
