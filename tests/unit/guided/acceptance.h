// Whether a compiled constraint accepts a text, byte by byte.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/guided/compile.h"
#include "common/guided/state_graph.h"

namespace tandem::guided {

class Acceptor {
 public:
  static absl::StatusOr<Acceptor> Create(request::GuidedParams::Kind kind, std::string text) {
    auto program = Compile({.kind = kind, .text = std::move(text)}, 64);
    if (!program.ok()) return program.status();
    return Acceptor(*std::move(program));
  }

  ConfigId After(absl::string_view text) const {
    ConfigId config = graph_->start();
    for (const char byte : text) config = graph_->Step(config, static_cast<uint8_t>(byte));
    return config;
  }
  bool Accepts(absl::string_view text) const { return graph_->MayEnd(After(text)); }
  // Whether the constraint accepts some text that begins with this one.
  bool Begins(absl::string_view text) const { return After(text) != kDeadConfig; }
  StateGraph& graph() const { return *graph_; }

 private:
  explicit Acceptor(Program program)
      : program_(std::make_unique<Program>(std::move(program))),
        graph_(std::make_unique<StateGraph>(*program_)) {}

  std::unique_ptr<Program> program_;
  std::unique_ptr<StateGraph> graph_;
};

}  // namespace tandem::guided
