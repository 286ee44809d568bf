// Safetensors files from outside: whatever they hold, every tensor of one that opens lies inside of it.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/base/testing/hostile_text.h"
#include "model/files/safetensors.h"
#include "model/files/testing/one_file_env.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tdock::model::SafetensorsFile;
  tdock::model::OneFileEnv env(std::string(reinterpret_cast<const char*>(data), size));
  const auto file = SafetensorsFile::Open(env, "model.safetensors");
  tdock::CheckMessage(file.status());
  if (!file.ok()) return 0;
  uint64_t sum = 0;
  size_t bytes = 0;
  for (const std::string& name : file->names()) {
    if (file->Bytes(name).size() != file->Info(name).bytes()) std::abort();
    for (const std::byte one : file->Bytes(name)) sum += static_cast<uint64_t>(one);
    bytes += file->Bytes(name).size();
  }
  volatile uint64_t read = sum;
  (void)read;
  if (bytes > size) std::abort();
  return 0;
}
