// The C++ side of the cross-language tests (testbench/tests/python/test_trace.py).
//
//   trace_tool check FILE...       one line per file: "ok" or the error
//   trace_tool copy IN OUT         reads every member of IN and writes it to OUT
//   trace_tool bad DIR             writes DIR/NAME.trace and DIR/NAME.error for every broken rule
//   trace_tool random SEED N DIR   writes DIR/0.trace .. DIR/N-1.trace
//   trace_tool magnitude FORMAT    floats on stdin to u32 on stdout, both binary
//   trace_tool kernels             one line per kernel: name, shape, operands, how many are required,
//                                  attribute and its default, with tabs between
#include <cstdio>
#include <exception>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "bad_traces.hpp"
#include "sample_traces.hpp"

namespace {

using opd::trace::Trace;

int usage() {
  std::fputs(
      "usage: trace_tool check FILE... | copy IN OUT | bad DIR | random SEED N DIR | magnitude "
      "FORMAT | kernels\n",
      stderr);
  return 2;
}

int run(const std::vector<std::string>& args) {
  if (args.size() > 1 && args[0] == "check") {
    for (std::size_t i = 1; i < args.size(); ++i) {
      try {
        Trace::read(args[i]);
        std::puts("ok");
      } catch (const opd::trace::TraceError& error) {
        std::puts(error.what());
      }
    }
    return 0;
  }
  if (args.size() == 3 && args[0] == "copy") {
    opd::trace::write(opd::tb::content_of(Trace::read(args[1])), args[2]);
    return 0;
  }
  if (args.size() == 2 && args[0] == "bad") {
    for (const opd::tb::BadTrace& bad : opd::tb::bad_traces()) {
      const std::string path = args[1] + "/" + bad.name;
      std::ofstream(path + ".trace", std::ios::binary)
          .write(reinterpret_cast<const char*>(bad.bytes.data()),
                 static_cast<std::streamsize>(bad.bytes.size()));
      std::ofstream(path + ".error") << bad.error;
    }
    return 0;
  }
  if (args.size() == 4 && args[0] == "random") {
    std::mt19937_64 rng(std::stoull(args[1]));
    for (int i = 0; i < std::stoi(args[2]); ++i) {
      opd::trace::write(opd::tb::random_trace(rng), args[3] + "/" + std::to_string(i) + ".trace");
    }
    return 0;
  }
  if (args.size() == 2 && args[0] == "magnitude") {
    for (std::size_t f = 0; f < opd::kFormatNames.size(); ++f) {
      if (opd::kFormatNames[f] != args[1]) continue;
      float value;
      while (std::fread(&value, sizeof value, 1, stdin) == 1) {
        const std::uint32_t bits = opd::trace::magnitude_bits(static_cast<opd::Format>(f), value);
        std::fwrite(&bits, sizeof bits, 1, stdout);
      }
      return 0;
    }
  }
  if (args.size() == 1 && args[0] == "kernels") {
    constexpr const char* kShapes[] = {"elementwise", "row_reduction", "row", "matrix"};
    for (const opd::KernelTraits& traits : opd::kKernels) {
      std::string operands;
      for (const std::string_view name : traits.operands) operands += std::string(name) + " ";
      std::printf("%s\t%s\t%s\t%zu\t%s\t%.17g\n", std::string(traits.name).c_str(),
                  kShapes[static_cast<std::size_t>(traits.shape)], operands.c_str(),
                  traits.required, std::string(traits.attribute).c_str(), traits.attribute_default);
    }
    return 0;
  }
  return usage();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trace_tool: %s\n", error.what());
    return 2;
  }
}
