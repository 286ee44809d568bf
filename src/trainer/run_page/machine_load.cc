#include "trainer/run_page/machine_load.h"

#include <dlfcn.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace tdock::trainer {
namespace {

// The number behind "MemTotal:", in bytes.
LogRecord BytesOf(absl::string_view meminfo, absl::string_view name) {
  for (const absl::string_view line : absl::StrSplit(meminfo, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t kibibytes = 0;
    if (words.size() >= 2 && words[0] == name && absl::SimpleAtoi(words[1], &kibibytes)) return kibibytes * 1024;
  }
  return nullptr;
}

struct CpuTime {
  uint64_t busy = 0, all = 0;
};

// Of all cores since the machine started: user, nice, system, idle, iowait, irq, softirq, steal.
std::optional<CpuTime> CpuTimeIn(absl::string_view stat) {
  const std::vector<absl::string_view> words = absl::StrSplit(stat.substr(0, stat.find('\n')), ' ', absl::SkipEmpty());
  if (words.size() < 9 || words[0] != "cpu") return std::nullopt;
  CpuTime time;
  for (size_t i = 1; i < 9; ++i) {
    uint64_t ticks = 0;
    if (!absl::SimpleAtoi(words[i], &ticks)) return std::nullopt;
    time.all += ticks;
    if (i != 4 && i != 5) time.busy += ticks;
  }
  return time;
}

}  // namespace

// NVIDIA's management library, as far as it is needed here.
class MachineLoad::Gpus {
 public:
  Gpus() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    Load("nvmlInit_v2", init_);
    Load("nvmlDeviceGetCount_v2", count_);
    Load("nvmlDeviceGetHandleByIndex_v2", device_);
    Load("nvmlDeviceGetName", name_);
    Load("nvmlDeviceGetUtilizationRates", rates_);
    Load("nvmlDeviceGetMemoryInfo", memory_);
    works_ = init_ != nullptr && count_ != nullptr && device_ != nullptr && name_ != nullptr && rates_ != nullptr &&
             memory_ != nullptr && init_() == 0;
  }
  ~Gpus() {
    if (library_ != nullptr) ::dlclose(library_);
  }
  Gpus(const Gpus&) = delete;
  Gpus& operator=(const Gpus&) = delete;

  LogRecord Now() const {
    LogRecord gpus = LogRecord::array();
    unsigned count = 0;
    if (!works_ || count_(&count) != 0) return gpus;
    for (unsigned i = 0; i < count; ++i) {
      void* device = nullptr;
      char name[96] = {};
      Rates rates;
      Memory memory;
      if (device_(i, &device) != 0) continue;
      const bool has_name = name_(device, name, sizeof(name) - 1) == 0, has_rates = rates_(device, &rates) == 0;
      const bool has_memory = memory_(device, &memory) == 0;
      gpus.push_back({{"name", has_name ? LogRecord(std::string(name)) : LogRecord("GPU")},
                      {"busy", has_rates ? LogRecord(rates.gpu / 100.0) : LogRecord()},
                      {"memory", has_memory ? LogRecord(memory.used) : LogRecord()},
                      {"memory_total", has_memory ? LogRecord(memory.total) : LogRecord()}});
    }
    return gpus;
  }

 private:
  struct Rates {
    unsigned gpu = 0, memory = 0;  // percent
  };
  struct Memory {
    unsigned long long total = 0, free = 0, used = 0;
  };
  template <class Function>
  void Load(const char* name, Function*& function) {
    if (library_ != nullptr) function = reinterpret_cast<Function*>(::dlsym(library_, name));
  }

  void* const library_;
  bool works_ = false;
  int (*init_)() = nullptr;
  int (*count_)(unsigned*) = nullptr;
  int (*device_)(unsigned, void**) = nullptr;
  int (*name_)(void*, char*, unsigned) = nullptr;
  int (*rates_)(void*, Rates*) = nullptr;
  int (*memory_)(void*, Memory*) = nullptr;
};

MachineLoad::MachineLoad(Env& env) : env_(env), gpus_(std::make_unique<Gpus>()) {}
MachineLoad::~MachineLoad() = default;

LogRecord MachineLoad::Now() {
  LogRecord cpu, load, used, total;
  if (const auto stat = env_.ReadFile("/proc/stat"); stat.ok()) {
    if (const std::optional<CpuTime> time = CpuTimeIn(*stat)) {
      const auto passed = static_cast<double>(time->all - all_);
      if (all_ > 0 && passed > 0) cpu = RoundedForPlot(static_cast<double>(time->busy - busy_) / passed);
      busy_ = time->busy;
      all_ = time->all;
    }
  }
  if (const auto text = env_.ReadFile("/proc/loadavg"); text.ok()) {
    double minute = 0;
    if (absl::SimpleAtod(absl::string_view(*text).substr(0, text->find(' ')), &minute)) load = minute;
  }
  if (const auto text = env_.ReadFile("/proc/meminfo"); text.ok()) {
    total = BytesOf(*text, "MemTotal:");
    const LogRecord available = BytesOf(*text, "MemAvailable:");
    if (total.is_number() && available.is_number()) used = total.get<int64_t>() - available.get<int64_t>();
  }
  return {{"cores", std::thread::hardware_concurrency()},
          {"cpu", std::move(cpu)},
          {"load", std::move(load)},
          {"memory", std::move(used)},
          {"memory_total", std::move(total)},
          {"gpus", gpus_->Now()}};
}

}  // namespace tdock::trainer
