// Entry point of the SystemC tests: the library's main() calls sc_main().
#include <gtest/gtest.h>

#include <systemc>

int sc_main(int argc, char** argv) {
  sc_core::sc_report_handler::set_actions(sc_core::SC_FATAL, sc_core::SC_THROW);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
