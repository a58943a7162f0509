# One program of GoogleTest from C++ sources, built anew only as far as a mutant reaches.
# make -f gtest.mk PROGRAM=<name> SOURCES="<f>..." FLAGS="<f>..." LIBS="<l>..."
OBJECTS := $(SOURCES:%.cpp=built/%.o)
$(PROGRAM): $(OBJECTS)
	g++ -o $@ $^ $(LIBS)
built/%.o: %.cpp
	@mkdir -p $(@D)
	$(shell command -v ccache) g++ -std=c++20 -O1 -ffp-contract=off -MMD $(FLAGS) -c -o $@ $<
-include $(OBJECTS:.o=.d)
