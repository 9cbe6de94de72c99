// Finds real models and committed golden files. A test that needs a real model which is not present
// skips, and names the file that it looked for.
#pragma once

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace tandem::testing {

inline constexpr char kSmolLm2File[] = "SmolLM2-135M-Instruct.Q4_1.gguf";
inline constexpr char kGemma3File[] = "gemma-3-270m-q4_k_m.gguf";

// The folder that scripts/fetch_model.py downloads to.
inline std::string ModelFolder() {
  if (const char* folder = std::getenv("TANDEM_MODELS"); folder != nullptr && *folder != '\0') {
    return folder;
  }
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
    return std::string(cache) + "/tandem/models";
  }
  const char* home = std::getenv("HOME");
  return std::string(home == nullptr ? "." : home) + "/.cache/tandem/models";
}

// The path of a model file; nullopt when it is not there.
inline std::optional<std::string> FindModel(const std::string& file_name) {
  std::string path = ModelFolder() + "/" + file_name;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return path;
}

// A folder below tests/golden, or below the goldens that lie beside the program in a bundle
// (scripts/make_gpu_bundle.sh). REQUIRES: the target defines TANDEM_SOURCE_DIR, as tandem_test
// does.
#ifdef TANDEM_SOURCE_DIR
inline std::string GoldenPath(const std::string& relative) {
  static const std::string folder = [] {
    std::error_code error;
    const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
    const auto bundled = program.parent_path().parent_path() / "goldens";
    return std::filesystem::is_directory(bundled, error) ? bundled.string()
                                                         : TANDEM_SOURCE_DIR "/tests/golden";
  }();
  return folder + "/" + relative;
}
#endif

// The whole file; empty when it cannot be read.
inline std::string ReadFileOrEmpty(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace tandem::testing

// Declares `path`, the real model's file, or skips the test.
#define TANDEM_FIND_MODEL_OR_SKIP(path, file_name)                                         \
  const std::optional<std::string> path##_found = ::tandem::testing::FindModel(file_name); \
  if (!path##_found.has_value()) {                                                         \
    GTEST_SKIP() << "no " << file_name << " in " << ::tandem::testing::ModelFolder()       \
                 << "; scripts/fetch_model.py fetches it";                                 \
  }                                                                                        \
  const std::string& path = *path##_found
