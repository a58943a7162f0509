#pragma once
// The binary32 vectors of testbench/vectors: results of an implementation that nobody here wrote.
#include <cstdint>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace opd::tb {

struct Binary32Vector {
  std::uint32_t a, b, sum, product;
  bool greater;  ///< a > b
};

/// All of them. Throws std::runtime_error naming the file and line that cannot be read.
inline std::vector<Binary32Vector> binary32_vectors() {
  const std::string path = OPD_VECTORS "/binary32.txt";
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + ": cannot be opened");
  std::vector<Binary32Vector> vectors;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.starts_with('#')) continue;
    std::istringstream fields(line);
    Binary32Vector v{};
    if (!(fields >> std::hex >> v.a >> v.b >> v.sum >> v.product >> v.greater))
      throw std::runtime_error(path + ':' + std::to_string(number) + ": no vector");
    vectors.push_back(v);
  }
  return vectors;
}

}  // namespace opd::tb
