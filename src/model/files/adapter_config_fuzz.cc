// adapter_config.json from outside: what is read can be written, and is read back as the same.
#include <cstdint>
#include <cstdlib>

#include "core/base/testing/hostile_text.h"
#include "model/files/adapter_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tdock::model;
  const auto config = ParseLoraConfig({reinterpret_cast<const char*>(data), size});
  tdock::CheckMessage(config.status());
  if (!config.ok()) return 0;
  const auto again = ParseLoraConfig(LoraConfigJson(*config, {.base_model = "base"}));
  if (!again.ok() || !(*again == *config)) std::abort();
  return 0;
}
