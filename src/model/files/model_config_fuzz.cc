// config.json from outside: what is read can be written, and is read back as the same.
#include <cstdint>
#include <cstdlib>

#include "core/base/testing/hostile_text.h"
#include "model/files/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tdock::model;
  const auto config = ParseModelConfig({reinterpret_cast<const char*>(data), size});
  tdock::CheckMessage(config.status());
  if (!config.ok()) return 0;
  const auto again = ParseModelConfig(ModelConfigJson(*config));
  if (!again.ok() || !(*again == *config)) std::abort();
  FrequenciesOf(config->rope, config->head_dim, config->max_positions, /*length=*/100);
  return 0;
}
