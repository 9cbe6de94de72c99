// Drives a fuzz target without libFuzzer: runs every file of the given folders unchanged, then
// seeded mutations of them. The same arguments give the same inputs. When an input kills the
// process, it prints the input's file, mutation and seed. An input that takes more processor time
// or memory than the options allow kills the process, too; the slowest one is named at the end.
// A run of all inputs fails, too, if the target says that they left something out.
// With --only, --save writes that input into a file.
//   target_fuzz [--mutations=N] [--seconds=S] [--seed=X] [--only=MUTATION] [--save=FILE]
//               [--input-cpu-seconds=S] [--memory-mib=M] FOLDER_OR_FILE...
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// A target may have it: what all inputs together should have reached and did not; "" = nothing.
extern "C" const char* FuzzTargetMissed() __attribute__((weak));

namespace {

struct Options {
  uint64_t mutations = 1000;  // in all, spread evenly over the files
  uint64_t seconds = 10;      // stops earlier when they are over
  uint64_t seed = 1;
  int64_t only = -1;  // this mutation alone, to reproduce a failure
  std::string save;   // where that input goes
  uint64_t input_cpu_seconds = 5;
  uint64_t memory_mib = 2048;  // of the whole process; 0 = no bound
};

// The input that took the most processor time.
struct Slowest {
  double seconds = -1;
  std::string input;
};

// What is being run, for the signal handler.
char g_current[1024];

void ReportAndDie(int signal_number) {
  // Only async-signal-safe calls here. Nothing can be done about a failed write.
  const ssize_t written = ::write(STDERR_FILENO, g_current, std::strlen(g_current));
  static_cast<void>(written);
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

uint64_t Below(std::mt19937_64& random, uint64_t bound) {
  return bound == 0 ? 0 : random() % bound;
}

// Overwrites 1 to 8 bytes with a number that parsers trip over.
void PlantNumber(std::mt19937_64& random, std::string& bytes) {
  static constexpr uint64_t kNumbers[] = {0,
                                          1,
                                          0x7f,
                                          0xff,
                                          0x7fffffff,
                                          0xffffffff,
                                          0x80000000,
                                          uint64_t{1} << 32,
                                          uint64_t{1} << 62,
                                          ~uint64_t{0},
                                          ~uint64_t{0} >> 1};
  const uint64_t number = kNumbers[Below(random, std::size(kNumbers))];
  const size_t width = size_t{1} << Below(random, 4);
  if (bytes.size() < width) return;
  std::memcpy(&bytes[Below(random, bytes.size() - width + 1)], &number, width);
}

void MutateOnce(std::mt19937_64& random, const std::string& other, std::string& bytes) {
  const uint64_t at = Below(random, bytes.size() + 1);
  switch (Below(random, 8)) {
    case 0:
      if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << Below(random, 8)));
      break;
    case 1:
      if (at < bytes.size()) bytes[at] = static_cast<char>(random());
      break;
    case 2:
    case 3:
      PlantNumber(random, bytes);
      break;
    case 4:
      bytes.resize(at);
      break;
    case 5:
      bytes.erase(at, Below(random, 64));
      break;
    case 6:
      bytes.insert(at, bytes.substr(Below(random, bytes.size() + 1), Below(random, 64)));
      break;
    default:
      bytes.insert(at, other.substr(Below(random, other.size() + 1), Below(random, 256)));
      break;
  }
}

std::string Mutate(uint64_t seed, uint64_t index, const std::string& original,
                   const std::string& other) {
  std::seed_seq sequence{seed, index};
  std::mt19937_64 random(sequence);
  std::string bytes = original;
  for (uint64_t i = 1 + Below(random, 6); i > 0; --i) MutateOnce(random, other, bytes);
  return bytes;
}

double ProcessorSeconds() {
  timespec now = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// g_current names the input.
void Run(const Options& options, const std::string& bytes, Slowest& slowest) {
  // A copy of exactly this size, so that sanitizers see one byte too far.
  const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
  // SIGPROF comes when the time is over.
  const itimerval limit = {.it_interval = {},
                           .it_value = {static_cast<time_t>(options.input_cpu_seconds), 0}};
  ::setitimer(ITIMER_PROF, &limit, nullptr);
  const double begin = ProcessorSeconds();
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  const double took = ProcessorSeconds() - begin;
  const itimerval none = {};
  ::setitimer(ITIMER_PROF, &none, nullptr);
  if (took > slowest.seconds) slowest = {took, g_current};
}

// Sanitizers take address space of their own, which the bound would count.
void BoundMemory(uint64_t mib) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const rlim_t bytes = static_cast<rlim_t>(mib) << 20;
  const rlimit limit = {bytes, bytes};
  if (mib > 0) ::setrlimit(RLIMIT_DATA, &limit);
#else
  static_cast<void>(mib);
#endif
}

bool ReadNumber(const char* argument, const char* name, uint64_t* value) {
  const size_t length = std::strlen(name);
  if (std::strncmp(argument, name, length) != 0) return false;
  *value = std::strtoull(argument + length, nullptr, 10);
  return true;
}

std::vector<std::string> FilesBelow(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

int RunAll(const Options& options, const std::vector<std::string>& files) {
  const auto begin = std::chrono::steady_clock::now();
  const auto limit = std::chrono::seconds(options.seconds);
  Slowest slowest;
  std::vector<std::string> inputs;
  for (const std::string& file : files) {
    std::ifstream in(file, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    std::snprintf(g_current, sizeof(g_current), "input: %s\n", file.c_str());
    Run(options, inputs.back(), slowest);
  }
  uint64_t done = 0;
  for (uint64_t i = 0; i < options.mutations; ++i) {
    if (std::chrono::steady_clock::now() - begin > limit) break;
    if (options.only >= 0 && i != static_cast<uint64_t>(options.only)) continue;
    const size_t file = i % inputs.size();
    std::snprintf(g_current, sizeof(g_current), "input: %s --only=%llu --seed=%llu\n",
                  files[file].c_str(), static_cast<unsigned long long>(i),
                  static_cast<unsigned long long>(options.seed));
    const std::string bytes =
        Mutate(options.seed, i, inputs[file], inputs[(i / inputs.size()) % inputs.size()]);
    if (!options.save.empty()) std::ofstream(options.save, std::ios::binary) << bytes;
    Run(options, bytes, slowest);
    ++done;
  }
  std::printf("%zu files and %llu of %llu mutations, seed %llu\n", files.size(),
              static_cast<unsigned long long>(done),
              static_cast<unsigned long long>(options.mutations),
              static_cast<unsigned long long>(options.seed));
  std::printf("slowest, %.3f s of processor time: %s", slowest.seconds, slowest.input.c_str());
  const char* missed = options.only < 0 && FuzzTargetMissed != nullptr ? FuzzTargetMissed() : "";
  if (*missed == '\0') return 0;
  std::fprintf(stderr, "no input reached %s\n", missed);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    uint64_t only = 0;
    if (ReadNumber(argv[i], "--mutations=", &options.mutations) ||
        ReadNumber(argv[i], "--seconds=", &options.seconds) ||
        ReadNumber(argv[i], "--input-cpu-seconds=", &options.input_cpu_seconds) ||
        ReadNumber(argv[i], "--memory-mib=", &options.memory_mib) ||
        ReadNumber(argv[i], "--seed=", &options.seed)) {
      continue;
    }
    if (ReadNumber(argv[i], "--only=", &only)) {
      options.only = static_cast<int64_t>(only);
      continue;
    }
    if (std::strncmp(argv[i], "--save=", 7) == 0) {
      options.save = argv[i] + 7;
      continue;
    }
    for (std::string& file : FilesBelow(argv[i])) files.push_back(std::move(file));
  }
  if (files.empty()) {
    std::fprintf(stderr, "no input: name a corpus folder that has files\n");
    return 2;
  }
  BoundMemory(options.memory_mib);
  for (const int number : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL, SIGPROF}) {
    std::signal(number, ReportAndDie);
  }
  return RunAll(options, files);
}
