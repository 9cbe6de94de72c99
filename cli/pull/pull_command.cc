// `tandem pull` and `tandem models`: implement NewPullCommand and NewModelsCommand
// (cli/command_line/commands.h).
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "cli/pull/download_progress.h"
#include "cli/pull/pull.h"
#include "common/base/status_macros.h"
#include "common/config/process_main.h"
#include "common/model/model_path.h"
#include "common/model/model_store.h"
#include "common/runtime/stop_signal.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

class PullCommand final : public Command {
 public:
  PullCommand() : schema_("tandem pull", "Brings a model to this disk, for --model NAME.") {
    schema_.Add("progress", &options_.progress, "Show progress on standard error.");
    schema_.Add(
        "attempts", &options_.attempts,
        "Tries in a row that bring nothing new before the pull is given up; the wait before "
        "each is twice the last one.",
        {.min = 1, .max = 100});
    schema_.AllowPositionals("NAME (hf:ORG/NAME[@REVISION][:FILE], or https://HOST/PATH.gguf)", 1);
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    std::vector<std::string> names;
    if (auto code = ParseArguments(schema_, args, env, &names)) return *code;
    if (names.empty()) {
      ReportError(schema_, absl::InvalidArgumentError("expected NAME"));
      return config::kExitUsage;
    }
    if (model::IsKnownModel(names[0])) {
      ReportError(schema_,
                  absl::InvalidArgumentError(absl::StrCat(
                      names[0], " is not on a hub: ", model::HowToGetKnownModel(names[0]))));
      return config::kExitUsage;
    }
    const absl::Status status = Pull(names[0], env);
    return status.ok() ? config::kExitOk : ReportError(schema_, status);
  }

 private:
  absl::Status Pull(const std::string& name, const Environment& env) {
    ASSIGN_OR_RETURN(const std::unique_ptr<StopSignal> stop, StopSignal::Create());
    options_.wait = [&](absl::Duration wait) { return stop->Wait(wait) == 0; };
    ASSIGN_OR_RETURN(const model::StoredModel model, PullModel(name, env, options_));
    absl::PrintF("%s: %s in %d files, at %s\n", name, BytesText(model.bytes()), model.files.size(),
                 model.path());
    return absl::OkStatus();
  }

  config::Schema schema_;
  PullOptions options_;
};

class ModelsCommand final : public Command {
 public:
  ModelsCommand() : schema_("tandem models", "Lists the models that are on this disk.") {
    schema_.Add("json", &json_, "The list as JSON.");
    schema_.Add("remove", &remove_, "Remove this model from the disk.");
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    if (auto code = ParseArguments(schema_, args, env, nullptr)) return *code;
    const std::vector<model::StoredModel> models = model::ListModels(model::ModelsFolder(env));
    const auto known = model::KnownModelsIn(model::ModelsFolder(env));
    const absl::Status status = remove_.empty() ? List(models, known) : Remove(models, known);
    return status.ok() ? config::kExitOk : ReportError(schema_, status);
  }

 private:
  // `known`: what scripts/fetch_model.py brought.
  absl::Status List(const std::vector<model::StoredModel>& models,
                    const std::vector<model::KnownModelFile>& known) const {
    if (json_) {
      nlohmann::json list = nlohmann::json::array();
      for (const model::StoredModel& model : models) {
        list.push_back({{"name", model.name},
                        {"commit", model.commit},
                        {"bytes", model.bytes()},
                        {"path", model.path()}});
      }
      for (const model::KnownModelFile& file : known) {
        list.push_back({{"name", file.name},
                        {"commit", ""},
                        {"bytes", BytesOf(file.path)},
                        {"path", file.path}});
      }
      absl::PrintF("%s\n", list.dump(2));
      return absl::OkStatus();
    }
    if (models.empty() && known.empty())
      absl::PrintF("no models; tandem pull hf:ORG/NAME brings one\n");
    for (const model::StoredModel& model : models)
      PrintModel(model.bytes(), model.name, model.path());
    for (const model::KnownModelFile& file : known)
      PrintModel(BytesOf(file.path), file.name, file.path);
    return absl::OkStatus();
  }

  static int64_t BytesOf(const std::string& path) {
    std::error_code error;
    const auto bytes = std::filesystem::file_size(path, error);
    return error ? 0 : static_cast<int64_t>(bytes);
  }
  // What lies beside a model's file because of it: that the script checked its hash, and the
  // weights that nodes packed.
  static std::vector<std::string> DerivedFiles(const std::string& path) {
    namespace fs = std::filesystem;
    std::vector<std::string> found;
    const std::string name = fs::path(path).filename().string();
    std::error_code error;
    for (fs::directory_iterator it(fs::path(path).parent_path(), error), end; !error && it != end;
         it.increment(error)) {
      const std::string other = it->path().filename().string();
      const bool packed = absl::StartsWith(other, name + ".") && absl::EndsWith(other, ".packed");
      if (packed || other == name + ".verified") found.push_back(it->path().string());
    }
    return found;
  }
  static void PrintModel(int64_t bytes, const std::string& name, const std::string& path) {
    absl::PrintF("%10s  %s\n            %s\n", BytesText(bytes), name, path);
  }

  absl::Status Remove(const std::vector<model::StoredModel>& models,
                      const std::vector<model::KnownModelFile>& known) const {
    for (const model::KnownModelFile& file : known) {
      if (file.name != remove_) continue;
      int64_t bytes = 0;
      // The model goes last: after an error the same command removes the rest.
      std::vector<std::string> paths = DerivedFiles(file.path);
      paths.push_back(file.path);
      for (const std::string& path : paths) {
        bytes += BytesOf(path);
        std::error_code error;
        std::filesystem::remove(path, error);
        if (error) return absl::UnavailableError(absl::StrCat(path, ": ", error.message()));
      }
      absl::PrintF("%s: removed, %s\n", file.name, BytesText(bytes));
      return absl::OkStatus();
    }
    for (const model::StoredModel& model : models) {
      if (model.name != remove_) continue;
      std::error_code error;
      std::filesystem::remove_all(model.folder, error);
      if (error) return absl::UnavailableError(absl::StrCat(model.folder, ": ", error.message()));
      absl::PrintF("%s: removed, %s\n", model.name, BytesText(model.bytes()));
      return absl::OkStatus();
    }
    return absl::NotFoundError(absl::StrCat(
        remove_, ": no such model on this disk; `tandem models` lists those that are"));
  }

  config::Schema schema_;
  bool json_ = false;
  std::string remove_;
};

}  // namespace

std::unique_ptr<Command> NewPullCommand() { return std::make_unique<PullCommand>(); }
std::unique_ptr<Command> NewModelsCommand() { return std::make_unique<ModelsCommand>(); }

}  // namespace tandem::cli
