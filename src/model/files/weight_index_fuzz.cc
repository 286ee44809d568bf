// model.safetensors.index.json from outside: it names files of its folder, and no other.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/base/testing/hostile_text.h"
#include "model/files/weight_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto files = tdock::model::ParseWeightIndex({reinterpret_cast<const char*>(data), size});
  tdock::CheckMessage(files.status());
  if (!files.ok()) return 0;
  for (const auto& [file, weights] : *files) {
    if (file.empty() || weights.empty() || file.find('/') != std::string::npos || file == "." || file == "..") {
      std::abort();
    }
  }
  return 0;
}
